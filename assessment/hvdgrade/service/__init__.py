"""The pool: a service that takes submissions from front doors, queues them, and hands them to workers.

    models.py    the tables            intake.py   a submission is handed in
    database.py  SQLite or PostgreSQL  queue.py    a worker takes a grading, and gives its result
    grades.py    which result counts   app.py      what is asked over HTTP

Only the server opens the database. A worker runs the code of strangers, so it has a token and no password.
"""
