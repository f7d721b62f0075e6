"""What a notebook shows folded, until somebody opens it."""


def show(html: str, plain: str) -> bool:
    """Shows the HTML in a notebook, whose stored text is `plain`; False elsewhere, where nothing could fold."""
    try:
        from IPython import get_ipython
        from IPython.display import display
    except ImportError:
        return False
    if get_ipython() is None:  # IPython can be installed and not be running
        return False
    display({"text/html": html, "text/plain": plain}, raw=True)
    return True
