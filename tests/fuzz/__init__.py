"""What reads data that others wrote, given bytes of any kind: see ``targets.py``.

``make fuzz`` looks for new ones with Atheris, guided by coverage; the tests here try the corpora.
"""
