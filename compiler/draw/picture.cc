#include "compiler/draw/picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace pp {
namespace {

constexpr Style kStyles[] = {
    {Op::kForward, "FW", 0x77AADD, 110, 67},
    {Op::kForwardDrop, "CFW", 0x99DDFF, 153, 110},
    {Op::kRecompute, "RE", 0xEEDD88, 222, 179},
    {Op::kBackward, "BW", 0x44BB99, 79, 36},
    {Op::kBackwardInput, "BW_input", 0xEE8866, 209, 167},
    {Op::kBackwardWeight, "BW_weight", 0xFFAABB, 217, 175},
    {Op::kStep, "STEP", 0xBBCC33, 185, 142},
    {Op::kReduceGrad, "reductions", 0xAAAA00, 142, 100},
    {Op::kReduceTied, "reductions", 0xAAAA00, 142, 100},
    {Op::kReduceNorm, "reductions", 0xAAAA00, 142, 100},
    {Op::kScatterGrad, "reductions", 0xAAAA00, 142, 100},
    {Op::kGatherWeights, "reductions", 0xAAAA00, 142, 100},
    {Op::kSendAct, "messages (act)", 0x77AADD, 110, 67},
    {Op::kRecvAct, "messages (act)", 0x77AADD, 110, 67},
    {Op::kSendGrad, "messages (grad)", 0x44BB99, 79, 36},
    {Op::kRecvGrad, "messages (grad)", 0x44BB99, 79, 36},
};
constexpr Style kOther = {Op::kWait, "other", 0xBBBBBB, 250, 244};

// Marks pairs of boxes of one lane that run at the same time.
void Share(std::vector<Box>* boxes) {
  for (size_t i = 1; i < boxes->size(); ++i) {
    Box &before = (*boxes)[i - 1], &box = (*boxes)[i];
    const double length = std::min(before.end - before.start, box.end - box.start);
    const double common = std::min(before.end, box.end) - std::max(before.start, box.start);
    if (before.height != Height::kWhole || length <= 0 || common < length / 2) continue;
    before.height = Height::kUpper;
    box.height = Height::kLower;
  }
}

}  // namespace

bool Track::TakesTime() const {
  return std::any_of(boxes.begin(), boxes.end(),
                     [](const Box& box) { return box.end > box.start; });
}

std::vector<std::vector<Span>> SpansWithWaits(const Program& program, const Execution& execution) {
  std::vector<std::vector<Span>> spans = execution.spans;
  for (int d = 0; d < program.devices; ++d) {
    double free = 0;  // since when the compute lane has nothing to do
    for (size_t i = 0; i < spans[d].size(); ++i) {
      const Instruction& instruction = program.lists[d].body[i];
      const Lane lane = Info(instruction.op).lane;
      const bool message = lane == Lane::kSend || lane == Lane::kRecv;
      if (lane != Lane::kCompute && !(message && program.p2p == P2p::kBlocking)) continue;
      if (instruction.op == Op::kWait) spans[d][i].start = std::min(free, spans[d][i].end);
      free = std::max(free, spans[d][i].end);
    }
  }
  return spans;
}

std::vector<std::vector<Track>> Tracks(const Program& program, const Execution& execution) {
  const auto spans = SpansWithWaits(program, execution);
  std::vector<std::vector<Track>> devices(program.devices);
  for (int d = 0; d < program.devices; ++d) {
    const auto& list = program.lists[d].body;
    std::map<int, Track> tracks = {{0, {{0, "compute"}, {}}}};
    for (size_t i = 0; i < list.size(); ++i) {
      LaneName lane = LaneOf(list[i]);
      Track& track = tracks[lane.id];
      track.lane = std::move(lane);
      track.boxes.push_back({static_cast<int32_t>(i), spans[d][i].start, spans[d][i].end});
    }
    for (auto& [id, track] : tracks) {
      Share(&track.boxes);
      devices[d].push_back(std::move(track));
    }
  }
  return devices;
}

const Style& StyleOf(Op op) {
  const auto* style = std::find_if(std::begin(kStyles), std::end(kStyles),
                                   [&](const Style& row) { return row.op == op; });
  return style == std::end(kStyles) ? kOther : *style;
}

Shade Shades::Of(int device, const Instruction& instruction) const {
  if (program_.pipes.size() > 1) {
    int pipe = instruction.pipe;
    if (pipe < 0 && instruction.micro >= 0)
      pipe = program_.pipe_of[instruction.micro % program_.pipe_of.size()];
    return {std::max(pipe, 0), static_cast<int>(program_.pipes.size())};
  }
  const auto copies = placement_.On(device);
  const auto copy =
      std::lower_bound(copies.begin(), copies.end(), instruction.stage,
                       [](const Placement::Copy& held, int stage) { return held.stage < stage; });
  if (copy == copies.end() || copy->stage != instruction.stage) return {};
  return {static_cast<int>(copy - copies.begin()), static_cast<int>(copies.size())};
}

std::string ColourOf(Op op, const Shade& shade) {
  constexpr double kDarkest = 0.24;
  const double light = shade.count > 1 ? 1 - kDarkest * shade.number / (shade.count - 1) : 1;
  const uint32_t colour = StyleOf(op).colour;
  auto part = [&](int shift) { return static_cast<int>(((colour >> shift) & 0xFF) * light + 0.5); };
  return fmt::format("#{:02x}{:02x}{:02x}", part(16), part(8), part(0));
}

std::string Title(const Program& program) {
  std::string out =
      fmt::format("{} devices, {} micro-batches", program.devices, program.microbatches);
  const int stages = program.StagesPerDevice();
  if (stages > 1) out += fmt::format(", {} stages per device", stages);
  if (program.pipes.size() > 1) out += fmt::format(", {} pipes", program.pipes.size());
  return out;
}

std::string Summary(const Program& program, const Prediction& prediction) {
  std::string out = fmt::format("makespan {:.6g} {}, bubble {:.1f} %", prediction.makespan,
                                prediction.unit, prediction.bubble * 100);
  if (prediction.execution.makespan > prediction.makespan * (1 + 1e-9))
    out += ", the steps overlap (makespan is of one)";
  if (!program.passes.empty()) out += ", passes " + program.passes;
  if (program.p2p == P2p::kBlocking) out += ", blocking messages";
  return out;
}

}  // namespace pp
