"""A report as a browser's parser sees it: elements with their attributes and text."""

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "br", "img", "input", "link", "hr"}


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]
    parent: "Element | None" = None
    children: list["Element | str"] = field(default_factory=list)

    @property
    def text(self):
        parts = [each if isinstance(each, str) else each.text for each in self.children]
        return " ".join(" ".join(parts).split())

    def all(self, tag=None):
        for child in self.children:
            if isinstance(child, Element):
                if tag is None or child.tag == tag:
                    yield child
                yield from child.all(tag)


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.root = self.now = Element("", {})

    def handle_starttag(self, tag, attrs):
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        element = Element(tag, dict(attrs), self.now)
        self.now.children.append(element)
        if tag not in VOID:
            self.now = element

    def handle_startendtag(self, tag, attrs):
        self.now.children.append(Element(tag, dict(attrs), self.now))

    def handle_endtag(self, tag):
        assert tag == self.now.tag, f"</{tag}> ends <{self.now.tag}>"
        self.now = self.now.parent

    def handle_data(self, data):
        self.now.children.append(data)


def read_page(text):
    reader = _Reader()
    reader.feed(text)
    reader.close()
    assert reader.now is reader.root, f"<{reader.now.tag}> is not closed"
    return reader.root
