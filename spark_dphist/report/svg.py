"""Matplotlib figures as SVG elements for a page: named for screen readers, without shared ids."""

from __future__ import annotations

import io
import re
from xml.etree import ElementTree

from matplotlib.figure import Figure

_SVG, _XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def inline_svg(figure: Figure, name: str, title: str, description: str) -> str:
    """Return a figure as an ``<svg>`` element.

    Parameters
    ----------
    figure
        Drawn by matplotlib.
    name
        Unique on the page; all ids within begin with it.
    title, description
        What a screen reader says in place of the picture.
    """
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None}, bbox_inches="tight")
    # Of our own making, not of a stranger's.
    root = ElementTree.fromstring(buffer.getvalue())  # noqa: S314
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag.endswith("}metadata"):
                parent.remove(child)
    for element in root.iter():
        for attribute, value in element.attrib.items():
            if attribute == "id":
                element.set(attribute, f"{name}-{value}")
            elif value.startswith("#") and attribute.endswith("href"):
                element.set(attribute, f"#{name}-{value[1:]}")
            else:
                element.set(attribute, _REFERENCE.sub(rf"url(#{name}-\1)", value))
    _name_it(root, name, title, description)
    ElementTree.register_namespace("", _SVG)
    ElementTree.register_namespace("xlink", _XLINK)
    return ElementTree.tostring(root, encoding="unicode")


def _name_it(root: ElementTree.Element, name: str, title: str, description: str) -> None:
    for position, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{_SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = text
        root.insert(position, element)
    root.set("role", "img")
    root.set("aria-labelledby", f"{name}-title")
    root.set("aria-describedby", f"{name}-desc")
    # The page decides how large it is; the view box keeps its shape.
    for size in ("width", "height"):
        root.attrib.pop(size, None)
