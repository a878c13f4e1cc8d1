"""A tube type of your own: last in, first out. Run it to see it at work: ``python lifo.py``."""

import tubes

LIFO = tubes.TubeType(
    tubes.Features(timed=True),  # with ttl, ttr and delay; no priority, sub-queues or capacity
    order="newest",
    doc="The task that was put last is taken first. A task that comes back keeps its place.",
)
tubes.register_driver("lifo", LIFO)


def main() -> None:
    with tubes.connect("sqlite://") as queue:
        undo = queue.create_tube("undo", "lifo")
        undo.put_many(["typed a word", "moved a line", "deleted a page"], ttl=3600)
        while (step := undo.take(timeout=0)) is not None:
            print("undo:", undo.ack(step).data)


if __name__ == "__main__":
    main()
