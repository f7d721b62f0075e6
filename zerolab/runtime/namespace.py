"""What `%%ranks` does in a rank: execute a cell in a namespace that stays."""

import ast
import io
import sys
import tokenize


def run_cell(cell: str, filename: str) -> None:
    """Execute a cell in the rank's `__main__`, and print the value if it ends with an expression that has one.

    As in any cell of a notebook, a semicolon at the end keeps the value to itself.
    """
    namespace = sys.modules["__main__"].__dict__
    body = ast.parse(cell, filename)
    last = body.body[-1] if body.body else None
    if isinstance(last, ast.Expr):
        del body.body[-1]
    exec(compile(body, filename, "exec"), namespace)  # noqa: S102  # running the learner's cell is what it is for
    if isinstance(last, ast.Expr):
        value = eval(compile(ast.Expression(last.value), filename, "eval"), namespace)  # noqa: S307  # as above
        if value is not None and not _ends_with_semicolon(cell):
            print(repr(value))


def _ends_with_semicolon(cell: str) -> bool:
    # By tokens, as IPython does it: a comment may follow, or hold the only semicolon.
    tokens = tokenize.generate_tokens(io.StringIO(cell).readline)
    last = [token for token in tokens if token.string.strip() and token.type != tokenize.COMMENT][-1]
    return last.string == ";"
