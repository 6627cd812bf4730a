"""A run's games as rows of data for other programs: JSON lines, Parquet, a folder for Hugging Face `datasets`.

    rows.py     an episode -> rows, each with its game's verdict and what it was paid
    files.py    rows -> a file or a folder, a few at a time

Tests of other names: files, rows in test_export.py.
"""
