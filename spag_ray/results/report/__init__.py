"""A run folder -> one self-contained HTML page.

    files.py          config, versions, matches, evaluations ─┐
    measurements.py   metrics.jsonl, thinned ─────────────────┼─> headline.py, sections.py, *_figures.py ─> page.py
    transcripts.py    episodes/*.log, counted ────────────────┘                                                │
        └─> packing.py   each game as it is read, in packed blocks ────────────────────────────────────────────┴─> HTML

The page lists missing or damaged files. Running and killed runs can have a report, too. In the browser, base.js unpacks
the data, charts.js draws charts, and filters.js, games.js and game.js show the list of games and the selected game.

Tests of other names: figure, files, headline, known_figures, outcome_figures, page, sections in test_report.py;
training_figures in test_measurements.py; tokens, packing in test_report_tokens.py; transcripts in
test_report_page.py.
"""
