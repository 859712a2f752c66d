"""What is done with records after they are read: conditions on values, and frames of other libraries.

Pure functions of records and Arrow data; touches no log. Packages that only some need are imported when used.
"""
