// A plan as a figure:
//
//   1f1b  4 devices, 8 micro-batches                              makespan 33 T, ...
//                                                                               peak
//   d0  [0][1][2][3]          [  0  ]   [4][  1  ] ...                             4
//   d1     [0][1][2]     [  0  ][3][  1  ] ...                                     3
//       |---------|---------|---------|  time (T)
//       [] FW  [] BW
//
// Several plans stand below one another, in one scale of time.
//
// Plain SVG 1.1 with attributes only, so that browsers, Inkscape and LaTeX agree on it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <vector>

#include "compiler/draw.h"
#include "compiler/draw/picture.h"
#include "schema/base/units.h"
#include "schema/text.h"

namespace pp {
namespace {

constexpr double kRight = 16, kTop = 50;
constexpr double kWidest = 1600;      // of a time axis
constexpr double kShortest = 1e-300;  // time that it shows
constexpr double kCharacter = 0.57;   // width of a digit in font sizes
constexpr double kSmallest = 5.5;     // font size; what would not fit then is left out
constexpr double kNarrow = 2;         // width of a box that its white frame would hide
constexpr double kNarrowest = 0.7;    // that is still seen
constexpr const char* kNoStroke = R"( stroke="none")";
constexpr const char* kInk = "#222";    // text
constexpr const char* kFaint = "#666";  // secondary text

std::string Escaped(std::string_view text) {
  std::string out;
  for (char c : text) {
    if (c == '&')
      out += "&amp;";
    else if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else
      out += c;
  }
  return out;
}

// 1, 2 or 5 times a power of ten, not below `least`.
double RoundStep(double least) {
  const double power = std::pow(10, std::floor(std::log10(least)));
  for (double factor : {1, 2, 5})
    if (factor * power >= least) return factor * power;
  return 10 * power;
}

class Figure {
 public:
  // `prefix`: of the groups' names, so that those of several figures differ.
  Figure(const Drawn& plan, std::string prefix)
      : program_(*plan.program),
        prediction_(*plan.prediction),
        name_(program_.scheme + plan.which),
        prefix_(std::move(prefix)),
        devices_(Tracks(program_, prediction_.execution)),
        end_(prediction_.execution.makespan),
        several_(program_.stages > program_.devices || program_.pipes.size() > 1) {
    Measure();
  }

  double scale() const { return scale_; }
  double end() const { return end_; }
  // Below whatever stands above `top`.
  void Draw(double top, double scale) {
    top_ = top + kTop;
    scale_ = scale;
    width_ = std::max(end_, kShortest) * scale_;
    const double below = DrawDevices();
    DrawAxis(below);
    DrawPeaks();
    bottom_ = DrawLegend(below + 44) + 10;
    Text(left_, top + 20, 14, "start", kInk, name_, R"( font-weight="bold")");
    Text(left_ + 9 * (name_.size() + 1.0), top + 20, 12, "start", kInk, Title(program_));
    Text(left_, top + 38, 11, "start", kFaint, Summary(program_, prediction_));
  }
  // REQUIRES: drawn.
  const std::string& text() const { return out_; }
  double width() const { return std::max(left_ + width_ + kRight + peaks_, 420.0); }
  double bottom() const { return bottom_; }

 private:
  // Whether a box is drawn: waiting is the white between boxes.
  bool Visible(int device, const Box& box) const {
    return box.end > box.start && program_.lists[device].body[box.index].op != Op::kWait;
  }

  // Sizes with which most boxes have room for their number.
  void Measure() {
    double busy = 0, boxes = 0;
    for (int d = 0; d < program_.devices; ++d)
      for (const Box& box : devices_[d].front().boxes)
        if (Visible(d, box)) busy += box.end - box.start, ++boxes;
    const double span = std::max(end_, kShortest);
    width_ = std::clamp(boxes > 0 ? 34 * span * boxes / busy : 0, 420.0, kWidest);
    scale_ = width_ / span;
    row_ = std::clamp(560.0 / program_.devices, 15.0, 26.0);
    thin_ = row_ > 20 ? 7 : 5;
    const bool bytes = std::any_of(prediction_.devices.begin(), prediction_.devices.end(),
                                   [](const DevicePrediction& d) { return d.peak_bytes > 0; });
    const bool named = std::any_of(devices_.begin(), devices_.end(), [](const auto& tracks) {
      return std::any_of(tracks.begin() + 1, tracks.end(), std::mem_fn(&Track::TakesTime));
    });
    left_ = named && thin_ > 5 ? 66 : 36;
    peaks_ = bytes ? 130 : 60;
    // All labels have room for the longest, so that equal boxes have equal ones.
    characters_ = fmt::format("{}", program_.microbatches - 1).size();
    if (several_) characters_ += 0.7 * fmt::format("{}", program_.stages - 1).size();
  }

  double X(double time) const { return left_ + time * scale_; }

  template <typename... Values>
  void Add(fmt::format_string<Values...> format, Values&&... values) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Values>(values)...);
  }

  void Text(double x, double y, double size, const char* anchor, const char* colour,
            std::string_view text, const char* more = "") {
    Add(R"(<text x="{:.1f}" y="{:.1f}" font-size="{:.3g}" text-anchor="{}" fill="{}"{}>{}</text>)"
        "\n",
        x, y, size, anchor, colour, more, Escaped(text));
  }

  // Returns the position of the axis.
  double DrawDevices() {
    double y = top_;
    for (int d = 0; d < program_.devices; ++d) {
      Add("<g id=\"{}d{}\" stroke=\"#fff\" stroke-width=\"0.6\">\n", prefix_, d);
      rows_.push_back(y);
      for (const Track& track : devices_[d]) {
        const bool compute = track.lane.id == 0;
        if (!compute && !track.TakesTime()) continue;
        const double height = compute ? row_ : thin_;
        Add(R"(<path d="M{:.1f} {:.1f}h{:.1f}v{:.1f}h{:.1f}z" fill="#f1f1f1" stroke="none"/>)"
            "\n",
            left_, y, width_, height, -width_);
        if (!compute && thin_ > 5)
          Text(left_ - 4, y + thin_ - 1, 6, "end", kFaint, track.lane.name, kNoStroke);
        for (const Box& box : track.boxes)
          if (Visible(d, box)) DrawBox(d, box, y, height);
        y += height + 1;
      }
      Add("</g>\n");
      Text(left_ - 8, rows_.back() + row_ / 2 + 4, 11, "end", kInk, fmt::format("d{}", d));
      y += row_ > 20 ? 4 : 2;
    }
    return y;
  }

  void DrawBox(int device, const Box& box, double y, double height) {
    const Instruction& instruction = program_.lists[device].body[box.index];
    const Shade shade = shade_of_.Of(device, instruction);
    if (box.height != Height::kWhole) height /= 2;
    if (box.height == Height::kLower) y += height;
    const double width = (box.end - box.start) * scale_;
    Add(R"(<rect x="{:.2f}" y="{:.1f}" width="{:.2f}" height="{:.1f}" fill="{}"{}>)"
        R"(<title>{}: {:.6g} to {:.6g} {}</title></rect>)"
        "\n",
        X(box.start), y, std::max(width, kNarrowest), height, ColourOf(instruction.op, shade),
        width < kNarrow ? kNoStroke : "", ToText(instruction), box.start, box.end,
        prediction_.unit);
    shades_ = std::max(shades_, shade.count);
    if (std::none_of(ops_.begin(), ops_.end(), [&](Op op) {
          return std::string_view(StyleOf(op).legend) == StyleOf(instruction.op).legend;
        }))
      ops_.push_back(instruction.op);
    if (Info(instruction.op).lane == Lane::kCompute && instruction.micro >= 0)
      DrawLabel(instruction, X(box.start) + width / 2, y + height / 2, width - 2, height - 1);
  }

  // The micro-batch and, smaller and lower, the stage.
  void DrawLabel(const Instruction& instruction, double x, double y, double width, double height) {
    const std::string micro = fmt::format("{}", instruction.micro);
    const std::string stage = several_ ? fmt::format("{}", instruction.stage) : "";
    const double size = std::min({11.0, height * 0.75, width / (kCharacter * characters_)});
    if (size < kSmallest) return;
    Add(R"(<text x="{:.2f}" y="{:.1f}" font-size="{:.3g}" text-anchor="middle" fill="#111" )"
        R"(stroke="none">{})",
        x, y + size * 0.36, size, micro);
    if (several_)
      Add(R"(<tspan font-size="{:.3g}" dy="{:.3g}">{}</tspan>)", size * 0.7, size * 0.2, stage);
    Add("</text>\n");
  }

  void DrawAxis(double y) {
    const double step = RoundStep(60 / scale_);
    Add(R"(<path d="M{:.1f} {:.1f}h{:.1f}" stroke="#888" fill="none"/>)"
        "\n",
        left_, y, width_);
    for (int tick = 0; tick * step <= end_ * (1 + 1e-9); ++tick) {
      Add(R"(<path d="M{:.1f} {:.1f}v4" stroke="#888" fill="none"/>)"
          "\n",
          X(tick * step), y);
      Text(X(tick * step), y + 15, 10, "middle", kFaint, fmt::format("{:.6g}", tick * step));
    }
    Text(left_ + width_ / 2, y + 30, 11, "middle", kInk,
         fmt::format("time ({})", prediction_.unit));
  }

  void DrawPeaks() {
    const double x = left_ + width_ + 58;
    Text(x, top_ - 17, 9, "end", kFaint, "peak");
    Text(x, top_ - 6, 9, "end", kFaint, "activations");
    for (int d = 0; d < program_.devices; ++d) {
      const DevicePrediction& device = prediction_.devices[d];
      const double y = rows_[d] + row_ / 2 + 4;
      if (d == 0 && device.peak_bytes > 0) Text(x + 62, top_ - 6, 9, "end", kFaint, "memory");
      Text(x, y, 10, "end", kFaint, fmt::format("{:.4g}", device.peak_activations));
      if (device.peak_bytes > 0) Text(x + 62, y, 10, "end", kFaint, BytesText(device.peak_bytes));
    }
  }

  // Returns where it ends.
  double DrawLegend(double y) {
    std::sort(ops_.begin(), ops_.end());
    double x = left_;
    auto item = [&](double width) {
      if (x > left_ && x + width > left_ + width_) x = left_, y += 17;
      const double at = x;
      x += width;
      return at;
    };
    for (Op op : ops_) {
      const std::string_view text = StyleOf(op).legend;
      const bool thin = Info(op).lane != Lane::kCompute;
      double at = item(12 * shades_ + 22 + 6.2 * text.size());
      for (int shade = 0; shade < shades_; ++shade, at += 12)
        Add(R"(<path d="M{0:.1f} {1:.1f}h11v{2}h-11z" fill="{3}"/>)"
            "\n",
            at, y - (thin ? 6.5 : 9.5), thin ? 5 : 11, ColourOf(op, {shade, shades_}));
      Text(at + 4, y, 11, "start", kInk, text);
    }
    std::string note = "number: micro-batch";
    if (several_) note += ", small: stage";
    if (shades_ > 1)
      note += program_.pipes.size() > 1 ? ", shade: pipe" : ", shade: which of a device's stages";
    const double at = item(5.6 * note.size());  // may begin a new line
    Text(at, y, 10, "start", kFaint, note);
    return y;
  }

  const Program& program_;
  const Shades shade_of_{program_};
  const Prediction& prediction_;
  const std::string name_, prefix_;
  const std::vector<std::vector<Track>> devices_;
  const double end_;          // of the picture; several steps of a program that overlaps them
  const bool several_;        // stages on a device, so that a label names its stage
  double width_, scale_;      // of the axis; pixels per unit of time
  double top_ = 0;            // of the first device
  double bottom_ = 0;         // below the legend
  double left_;               // where it begins
  double row_, thin_;         // heights of the compute lane and of others
  double peaks_;              // width of the columns on the right
  double characters_;         // of the longest label
  std::vector<double> rows_;  // device -> top
  std::vector<Op> ops_;       // drawn, one per line of the legend
  int shades_ = 1;
  std::string out_;
};

}  // namespace

std::string Svg(std::span<const Drawn> plans) {
  std::vector<Figure> figures;
  double scale = 0, end = kShortest;
  for (const Drawn& plan : plans) {
    const Figure& figure =
        figures.emplace_back(plan, plans.size() > 1 ? fmt::format("p{}", figures.size()) : "");
    scale = std::max(scale, figure.scale());
    end = std::max(end, figure.end());
  }
  scale = std::min(scale, kWidest / end);
  std::string out;
  double width = 0, bottom = 0;
  for (Figure& figure : figures) {
    figure.Draw(bottom, scale);
    width = std::max(width, figure.width());
    bottom = figure.bottom();
    out += figure.text();
  }
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0:.0f}" height="{1:.0f}" )"
                     R"(viewBox="0 0 {0:.0f} {1:.0f}" font-family="Helvetica, Arial, sans-serif">)"
                     "\n"
                     R"(<path d="M0 0H{0:.0f}V{1:.0f}H0z" fill="#fff"/>)"
                     "\n{2}</svg>\n",
                     width, bottom, out);
}

}  // namespace pp
