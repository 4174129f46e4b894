"""Buttons below a question of a notebook: one for each choice, or a field for a number."""

from collections.abc import Callable

from hvdlab import HvdlabError


def show(letters: str, feedback: Callable[[str], str]) -> None:
    """Show the buttons, and below them the feedback on the last answer.

    Args:
        letters: the letters of the choices. Empty: the answer is a number.
        feedback: returns the feedback on an answer as Markdown.
    """
    import ipywidgets  # takes a second
    from IPython.display import display

    said = ipywidgets.Output()

    def answer(text: str) -> None:
        try:
            words = f"*Your answer:* {text}\n\n{feedback(text)}"
        except HvdlabError as error:
            words = str(error)
        data = {"text/markdown": words, "text/plain": words}
        said.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)

    if letters:
        inputs = [
            ipywidgets.Button(description=letter, layout={"width": "3em"}) for letter in letters
        ]
        for button in inputs:
            button.on_click(lambda pressed: answer(pressed.description))
    else:
        field = ipywidgets.Text(placeholder="a number", layout={"width": "10em"})
        check = ipywidgets.Button(description="Check")
        check.on_click(lambda _: answer(field.value))
        inputs = [field, check]
    display(ipywidgets.VBox([ipywidgets.HBox(inputs), said]))
