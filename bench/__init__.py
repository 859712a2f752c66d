"""Stratalog beside the embedded stores a Python user would pick instead: ``python -m bench``.

Every figure is a median of several runs, taken in turn with the others in one process on one filesystem;
the raw numbers stay in ``.bench/``. `systems` says how each store is set up and why, `sections` what is
measured, and each section proves that what came out is equal before it shows how fast it was. A bar that
is missed is printed as missed.
"""
