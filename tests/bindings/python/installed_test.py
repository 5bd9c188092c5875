"""That the package of this Python is the one of the clone, which the other tests are of."""
import unittest
from pathlib import Path

import guozhuang as gz

SOURCE = Path(__file__).parents[3] / "bindings/python/src/guozhuang"


class Installed(unittest.TestCase):
    def test_is_of_this_clone(self):
        installed = Path(gz.__file__).parent
        self.assertNotEqual(installed, SOURCE)
        for source in [*SOURCE.rglob("*.py"), *SOURCE.rglob("*.pyi")]:
            copy = installed / source.relative_to(SOURCE)
            self.assertTrue(copy.exists() and copy.read_text() == source.read_text(),
                            f"{copy} is of another version: pip install ./bindings/python")
