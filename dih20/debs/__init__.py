"""Debian packages as facts: versions in dpkg's order, control files, what is installed, what is missing.

version.compare("1:2.0~rc1", "1:2.0")          negative, zero or positive, as dpkg orders them
control.read_control(path)                     the control file of a .deb, read without dpkg
database.parse_status(text)                    the packages that a dpkg status file lists
relations.faults(packages)                     dependencies that nothing answers, conflicts that hold

Pure python, so that a lock is judged the same on every machine.
"""
