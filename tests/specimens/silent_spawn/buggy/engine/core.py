"""The engine core process."""

from engine import connectors


def run_engine_core(connection, name: str) -> None:
    try:
        connection.send(connectors.get(name))
    except ValueError as error:
        connection.send(error)
