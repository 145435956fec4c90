#include "compiler/tune/bounds.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "schema/semantics/placement.h"

namespace pp {

LiveBytes::LiveBytes(const Program& program, Layouts* layouts) : state_(program.devices) {
  const Job& job = *program.job;
  const int64_t shards = program.zero > 0 ? program.Copies() : 1;
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout& layout = layouts->Of(job, s).layout;
    // What a forward read stays until its backward.
    const int64_t input =
        layout.targets_bytes +
        (layout.first ? layout.tokens_bytes
                      : job.stream_tokens() * job.model.hidden_size * BytesOf(job.dtype));
    kept_.push_back(input + layout.kept_bytes);
    full_.push_back(input + layout.kept_bytes + layout.stash_bytes);
    const int64_t rounded = job.backend == DeviceKind::kCuda ? layout.rounded_bytes : 0;
    for (const Pipe& pipe : program.pipes)
      state_[pipe.device_of[s]] +=
          layout.weights_bytes + layout.wgrad_bytes + layout.optimizer_bytes / shards + rounded;
  }
}

double LiveBytes::Of(int device, const std::vector<Instruction>& list) const {
  int64_t level = state_[device], most = level;
  for (const Instruction& i : list) {
    if (i.op == Op::kForwardDrop) level += kept_[i.stage];
    if (i.op == Op::kForward) level += full_[i.stage];
    if (i.op == Op::kRecompute) level += full_[i.stage] - kept_[i.stage];
    most = std::max(most, level);
    if (i.op == Op::kBackward || i.op == Op::kBackwardWeight) level -= full_[i.stage];
  }
  return static_cast<double>(most);
}

double MostLiveBytes(const Program& program, Layouts* layouts) {
  const LiveBytes live(program, layouts);
  double most = 0;
  for (int d = 0; d < program.devices; ++d)
    most = std::max(most, live.Of(d, program.lists.empty() ? std::vector<Instruction>()
                                                           : program.lists[d].body));
  return most;
}

double WorkBound(const Program& program, const CostModel& costs, int microbatches,
                 bool recomputes) {
  const std::vector<double> shares = program.Shares();
  const auto time = [&](const PerStage& values, int s) { return At(values, s) * shares[s]; };
  const auto& some = program.lists.front().body;
  const bool split = std::any_of(some.begin(), some.end(),
                                 [](const Instruction& i) { return i.op == Op::kBackwardInput; });
  std::vector<double> share_of_pipe(program.pipes.size());
  for (const int32_t pipe : program.pipe_of) share_of_pipe[pipe] += 1.0 / program.microbatches;
  struct Device {
    double head = HUGE_VAL, tail = HUGE_VAL, work = 0, weights = 0, reductions = 0;
  };
  std::vector<Device> devices(program.devices);
  double step = HUGE_VAL;
  for (size_t p = 0; p < program.pipes.size(); ++p) {
    double there = 0, back = 0;
    for (int s = 0; s < program.stages; ++s) {
      Device& device = devices[program.pipes[p].device_of[s]];
      device.head = std::min(device.head, there);
      device.tail = std::min(device.tail, back);
      const double way = At(costs.comm, s) + At(costs.latency, s);
      // Where backwards are split, some may be whole, whatever is cheaper.
      const double halves = std::min(time(costs.b, s), time(costs.bi, s) + time(costs.bw, s));
      const double backward = split ? std::min(halves, time(costs.bi, s)) : time(costs.b, s);
      there += time(costs.f, s) + way;
      back += backward + way;
      const double micros = microbatches * share_of_pipe[p];
      device.work += micros * (time(costs.f, s) + backward + (recomputes ? time(costs.r, s) : 0));
      if (split) device.weights += micros * (halves - backward);
      if (program.Copies() > 1)
        device.reductions += At(costs.contention, s) * time(costs.reduce, s);
      step = std::min(step, time(costs.step, s));
    }
  }
  for (size_t d = 0; d < program.lists.size() && !recomputes; ++d)
    for (const Instruction& i : program.lists[d].body)
      if (i.op == Op::kRecompute) devices[d].work += time(costs.r, i.stage);
  double bound = 0;
  for (const Device& device : devices)
    if (device.head < HUGE_VAL)
      bound = std::max(bound, device.head + device.work +
                                  std::max(device.tail, device.weights + device.reductions));
  return bound + step;
}

Parts PartsByWork(const Program& program, const CostModel& costs, int microbatches,
                  bool recomputes) {
  const std::vector<double> shares = program.Shares();
  const auto copies = static_cast<double>(program.pipes.size());
  Parts parts;
  for (int s = 0; s < program.stages; ++s) {
    const double recompute = recomputes ? At(costs.r, s) : 0;
    parts.compute += microbatches * (At(costs.f, s) + At(costs.b, s) + recompute) * shares[s];
    if (s + 1 < program.stages) parts.messages += 2 * microbatches * At(costs.comm, s);
    if (program.Copies() > 1) parts.reductions += copies * At(costs.reduce, s) * shares[s];
    parts.optimizer += copies * At(costs.step, s) * shares[s];
  }
  for (double* part : {&parts.compute, &parts.messages, &parts.reductions, &parts.optimizer})
    *part /= program.devices;
  return parts;
}

double ScheduleBound(const Program& program, const CostModel& costs, const Spans& spans) {
  const std::vector<double> shares = program.Shares();
  std::vector<double> over(program.stages);
  for (int d = 0; d < program.devices; ++d)
    for (size_t i = 0; i < spans[d].size(); ++i)
      if (const int stage = program.lists[d].body[i].stage; stage >= 0)
        over[stage] = std::max(over[stage], spans[d][i].end);
  const Placement placement(program);
  double reduced = 0, rest = 0;
  for (int d = 0; d < program.devices; ++d) {
    std::vector<std::pair<double, double>> reductions;  // when it can start, how long it takes
    double steps = 0, first_step = HUGE_VAL, after = 0;
    for (const Placement::Copy& copy : placement.On(d)) {
      const int s = copy.stage;
      const double reduction = program.Copies() > 1 ? At(costs.reduce, s) * shares[s] : 0;
      const double step = At(costs.step, s) * shares[s];
      const double share = program.zero > 0 ? 0.5 : 1;
      reductions.emplace_back(over[s], share * reduction);
      after += (1 - share) * reduction;
      steps += step;
      first_step = std::min(first_step, step);
    }
    if (reductions.empty()) continue;
    std::sort(reductions.begin(), reductions.end());
    double time = 0;
    for (const auto& [start, length] : reductions) time = std::max(time, start) + length;
    reduced = std::max(reduced, time);
    rest = std::max({rest, steps, first_step + after});
  }
  return reduced + rest;
}

double LeastToFree(const Program& program, const CostModel& costs, Layouts* layouts) {
  const std::vector<double> shares = program.Shares();
  double least = HUGE_VAL;
  for (int s = 0; s < program.stages; ++s)
    if (const int64_t stash = layouts->Of(*program.job, s).layout.stash_bytes; stash > 0)
      least = std::min(least, At(costs.r, s) * shares[s] / static_cast<double>(stash));
  return least;
}

}  // namespace pp
