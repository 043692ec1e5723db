#!/usr/bin/env python3
"""Names that rank threads add to the environment (accelerate and the Trainer do) while others read it: glibc before 2.41 frees the array that they read.

Usage: environment_test.py [unittest's arguments]
"""

import ctypes
import os
import subprocess
import unittest

import tessera

LIBC = ctypes.CDLL(None)
LIBC.getenv.restype = ctypes.c_char_p


def names():
    """Where the array of names is."""
    return ctypes.c_void_p.in_dll(LIBC, "environ").value


def read(array):
    """The texts of an array of names, which a null ends."""
    entries, texts = ctypes.cast(array, ctypes.POINTER(ctypes.c_char_p)), []
    while entries[len(texts)] is not None:
        texts.append(entries[len(texts)])
    return texts


class EnvironmentTest(unittest.TestCase):
    def setUp(self):
        before = dict(os.environ)
        self.addCleanup(lambda: [os.environ.pop(name) for name in set(os.environ) - set(before)])

    def test_what_a_reader_holds_stays(self):
        def body():
            if tessera.rank() == 0:
                os.environ["TESSERA_TEST_FIRST"] = "x"
                held, texts = names(), read(names())
                for i in range(300):
                    os.environ[f"TESSERA_TEST_{i}"] = str(i)
                self.assertEqual(read(held), texts)

        tessera.run_ranks(body, 2)

    def test_names_are_there(self):
        def body():
            if tessera.rank() == 0:
                os.environ["TESSERA_TEST_NEW"] = "one"
                os.environ["TESSERA_TEST_NEW"] = "two"
                os.environ["TESSERA_TEST_GONE"] = "one"
                del os.environ["TESSERA_TEST_GONE"]

        tessera.run_ranks(body, 2)
        os.environ["TESSERA_TEST_AFTER"] = "three"
        for name, value in (("TESSERA_TEST_NEW", b"two"), ("TESSERA_TEST_GONE", None), ("TESSERA_TEST_AFTER", b"three"), ("PATH", os.environb[b"PATH"])):
            self.assertEqual(LIBC.getenv(name.encode()), value, name)
        told = subprocess.run(["printenv", "TESSERA_TEST_NEW"], capture_output=True, text=True)  # a child is told too
        self.assertEqual(told.stdout, "two\n")


if __name__ == "__main__":
    unittest.main()
