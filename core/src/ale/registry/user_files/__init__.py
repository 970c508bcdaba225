"""Python files of the user's that a run file names: each is imported as a module of this package.

1. A module's name holds the file's path and a digest of its text (`loading.py`), so a changed file is another module.
2. Any process can import such a module by its name, as `pickle` does: classes of a user's file and their objects can be
   sent to the processes of trainers and clusters, where the file is read again. There it must have the same text.
"""

import sys

from ale.registry.user_files.loading import (
    PACKAGE,
    UserFiles,
    import_file,
    import_module,
    line_in,
    search_current_folder,
    show_path,
    text_of,
)

if not any(isinstance(finder, UserFiles) for finder in sys.meta_path):
    sys.meta_path.append(UserFiles())

__all__ = ["PACKAGE", "import_file", "import_module", "line_in", "search_current_folder", "show_path", "text_of"]
