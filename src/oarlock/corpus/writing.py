"""Writing arrays of a length that is not known beforehand, as .npy files."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Self

import numpy as np
from numpy.lib import format as npy
from numpy.typing import DTypeLike, NDArray

from oarlock.corpus.dataset import narrowest_dtype
from oarlock.corpus.windows import Windows


class ArrayWriter:
    """Appends to a one-dimensional .npy file; the header, whose size is fixed, is written again at the end."""

    def __init__(self, path: Path, dtype: DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._size = 0
        self._file = path.open("wb")
        self._write_header()

    def append(self, values: NDArray[np.generic]) -> None:
        """Write these at the end."""
        self._file.write(np.ascontiguousarray(values, self._dtype).data)
        self._size += len(values)

    def close(self) -> None:
        """Finish the file and see it on disk."""
        end = self._file.tell()
        self._file.seek(0)
        self._write_header()
        assert end == self._file.tell() + self._size * self._dtype.itemsize, "the header changed its size"
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()

    def abandon(self) -> None:
        """Close the file as it is."""
        self._file.close()

    def _write_header(self) -> None:
        header = {"descr": npy.dtype_to_descr(self._dtype), "fortran_order": False, "shape": (self._size,)}
        npy.write_array_header_1_0(self._file, header)


class SplitWriter:
    """Writes the arrays of one split; they are whole when the `with` block has ended well."""

    def __init__(self, folder: Path, vocab_size: int, max_length: int) -> None:
        folder.mkdir(parents=True)
        width = narrowest_dtype(max_length + 1)
        self._arrays: Mapping[str, ArrayWriter] = {
            "ids": ArrayWriter(folder / "ids.npy", narrowest_dtype(vocab_size)),
            "lengths": ArrayWriter(folder / "lengths.npy", width),
            "offsets": ArrayWriter(folder / "offsets.npy", np.int64),
            "maskable": ArrayWriter(folder / "maskable.npy", width),
        }
        self._end = 0
        self._arrays["offsets"].append(np.zeros(1, np.int64))

    def append(self, windows: Windows, chosen_W: NDArray[np.bool_]) -> NDArray[np.unsignedinteger]:
        """Write the chosen windows; returns their ids."""
        lengths = windows.lengths_W[chosen_W]
        ids = windows.ids if chosen_W.all() else windows.ids[np.repeat(chosen_W, windows.lengths_W)]
        self._arrays["ids"].append(ids)
        self._arrays["lengths"].append(lengths)
        self._arrays["offsets"].append(self._end + np.cumsum(lengths))
        self._arrays["maskable"].append(windows.maskable_W[chosen_W])
        self._end += len(ids)
        return ids

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        for array in self._arrays.values():
            if error_type is None:
                array.close()
            else:
                array.abandon()
