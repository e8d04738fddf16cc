"""The pictures of four scans."""

from experiments.paper.section import Section

SECTION = Section(
    name="scan_pictures",
    title="The scan itself: up-sweep, middle and down-sweep",
    minutes=1,
    paper="The paper draws its scan in principle. Here are those of four chains, with the cost of "
    "every product for one sample; `experiments.train.scan_picture.draw_chain` draws any attached "
    "chain.",
    run="experiments.paper.scan_pictures",
    pictures=("scan_rnn_blelloch", "scan_rnn_chunked", "scan_lenet5", "scan_vgg11"),
)
