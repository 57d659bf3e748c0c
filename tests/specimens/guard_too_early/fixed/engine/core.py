"""The engine core process."""


def run_engine_core(connection, pair) -> None:
    from engine.ops.common.fused_norm_rope import rotate

    connection.send(rotate(pair))
