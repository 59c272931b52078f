"""What tests need besides the package: small data sets, comparisons, the golden loss curve."""
