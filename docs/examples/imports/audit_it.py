import pytest_cudafork

for record in pytest_cudafork.audit("mypkg", exclude=["mypkg.tests"]):
    if record.verdict is pytest_cudafork.ImportVerdict.TOUCHES:
        print(record.module, record.where)
