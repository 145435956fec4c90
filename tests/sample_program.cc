#include "tests/sample_program.h"

#include <algorithm>
#include <vector>

#include "schema/routines.h"
#include "schema/semantics/regions.h"
#include "schema/semantics/walk.h"
#include "tests/models.h"

namespace pp {
namespace {

Program Head(const SampleArgs& args) {
  Program program;
  program.scheme = "sample";
  program.p2p = args.p2p;
  program.devices = args.devices;
  program.stages = args.devices * args.stages_per_device;
  program.microbatches = args.microbatches;
  program.replicas = args.replicas;
  program.zero = args.zero;
  program.tied = args.tied;
  for (int pipe = 0; pipe < args.pipes; ++pipe) {
    Pipe& to = program.pipes.emplace_back();
    for (int s = 0; s < program.stages; ++s) {
      const int device = s % args.devices;
      to.device_of.push_back(pipe == 0 ? device : args.devices - 1 - device);
    }
  }
  for (int m = 0; m < args.microbatches; ++m) program.pipe_of.push_back(m % args.pipes);
  if (args.model) {
    Job& job = program.job.emplace();
    job.model = pp::PaperModel(program.stages);
    job.micro_batch_size = 2;
    job.sequence_length = 4;
    job.layers_per_stage.assign(program.stages, 1);
  }
  program.lists.resize(args.devices);
  return program;
}

// Writes the list of one device.
class Writer {
 public:
  Writer(const SampleArgs& args, int device, Program* program)
      : args_(args),
        device_(device),
        program_(*program),
        list_(program->lists[device]),
        last_(program->stages - 1) {}

  void Run() {
    args_.one_f_one_b ? OneFOneB() : AllForwardsFirst();
    for (const Instruction& wait : sends_) list_.body.push_back(wait);
    Finish();
  }

 private:
  int DeviceOf(int stage, int micro) const {
    return program_.pipes[program_.pipe_of[micro]].device_of[stage];
  }

  void OneFOneB() {
    const int ahead = std::min(args_.devices - 1 - device_, args_.microbatches);
    for (int m = 0; m < ahead; ++m) Forward(device_, m);
    for (int m = ahead; m < args_.microbatches; ++m) {
      Forward(device_, m);
      Backward(device_, m - ahead);
    }
    for (int m = args_.microbatches - ahead; m < args_.microbatches; ++m) Backward(device_, m);
  }

  void AllForwardsFirst() {
    for (int s = 0; s <= last_; ++s)
      for (int m = 0; m < args_.microbatches; ++m)
        if (DeviceOf(s, m) == device_) Forward(s, m);
    for (int s = last_; s >= 0; --s)
      for (int m = 0; m < args_.microbatches; ++m)
        if (DeviceOf(s, m) == device_) Backward(s, m);
  }

  void Forward(int s, int m) {
    if (s > 0) Receive(Kind::kAct, s - 1, m, DeviceOf(s - 1, m));
    if (s == 0 || s == last_) Add({.op = Op::kLoad, .stage = s, .micro = m});
    const bool drop = args_.backward == SampleBackward::kRecompute;
    Add({.op = drop ? Op::kForwardDrop : Op::kForward, .stage = s, .micro = m});
    if (s < last_) Send(Kind::kAct, s, m, DeviceOf(s + 1, m));
  }

  void Backward(int s, int m) {
    if (s < last_) Receive(Kind::kGrad, s, m, DeviceOf(s + 1, m));
    if (args_.backward == SampleBackward::kRecompute) {
      Add({.op = Op::kRecompute, .stage = s, .micro = m});
    }
    const bool halves = args_.backward == SampleBackward::kHalves;
    Add({.op = halves ? Op::kBackwardInput : Op::kBackward, .stage = s, .micro = m});
    if (s > 0) Send(Kind::kGrad, s - 1, m, DeviceOf(s - 1, m));
    if (halves) Add({.op = Op::kBackwardWeight, .stage = s, .micro = m});
  }

  void Receive(Kind kind, int s, int m, int peer) {
    if (peer == device_) return;
    const Op op = kind == Kind::kAct ? Op::kRecvAct : Op::kRecvGrad;
    Add({.op = op, .stage = s, .micro = m, .peer = peer});
    if (args_.p2p == P2p::kAsync) Add({.op = Op::kWait, .value = kind, .stage = s, .micro = m});
  }

  void Send(Kind kind, int s, int m, int peer) {
    if (peer == device_) return;
    const Op op = kind == Kind::kAct ? Op::kSendAct : Op::kSendGrad;
    Add({.op = op, .stage = s, .micro = m, .peer = peer});
    if (args_.p2p == P2p::kBlocking) return;
    sends_.push_back({.op = Op::kWait, .value = kind, .sent = true, .stage = s, .micro = m});
    if (sends_.size() > 2) {
      list_.body.push_back(sends_.front());
      sends_.erase(sends_.begin());
    }
  }

  // Reductions, the norm and the steps.
  void Finish() {
    std::vector<std::pair<int, int16_t>> copies;  // stage, pipe
    for (int s = 0; s <= last_; ++s)              // all devices reduce in the same order
      for (int p = 0; p < args_.pipes; ++p)
        if (program_.pipes[p].device_of[s] == device_)
          copies.emplace_back(s, static_cast<int16_t>(args_.pipes > 1 ? p : -1));
    const bool shards = program_.Copies() > 1 && args_.zero == 1;
    if (program_.Copies() > 1) {
      ForBuckets(shards ? Op::kScatterGrad : Op::kReduceGrad, Kind::kNone, copies);
      ForBuckets(Op::kWait, Kind::kWgrad, copies);
    }
    SumTied();
    for (auto [s, p] : copies)
      if (p <= 0 || shards) Add({.op = Op::kNormGrad, .pipe = p, .stage = s});
    Add({.op = Op::kReduceNorm});
    Add({.op = Op::kWait, .value = Kind::kNorm});
    for (auto [s, p] : copies) Add({.op = Op::kStep, .pipe = p, .stage = s});
    if (!shards) return;
    ForBuckets(Op::kGatherWeights, Kind::kNone, copies);
    ForBuckets(Op::kWait, Kind::kWeights, copies);
  }

  // The models are so small that there is one bucket, and one for a tied tensor's weights.
  void ForBuckets(Op op, Kind value, const std::vector<std::pair<int, int16_t>>& copies) {
    const bool gathers = op == Op::kGatherWeights || value == Kind::kWeights;
    for (auto [s, p] : copies)
      for (int16_t b = 0; b < (gathers && program_.IsTied(s) ? 2 : 1); ++b)
        Add({.op = op, .value = value, .bucket = b, .pipe = p, .stage = s});
  }

  void SumTied() {
    const std::vector<int32_t> held = program_.StagesOf(device_);
    if (std::none_of(held.begin(), held.end(), [&](int s) { return program_.IsTied(s); })) return;
    Add({.op = Op::kReduceTied});
    Add({.op = Op::kWait, .value = Kind::kTied});
  }

  void Add(const Instruction& i) { list_.body.push_back(i); }

  const SampleArgs& args_;
  const int device_;
  Program& program_;
  DeviceList& list_;
  const int last_;
  std::vector<Instruction> sends_;  // the WAITs for sends under way
};

// What a device's values and regions take, one after the other.
class Memory {
 public:
  explicit Memory(const Program& program) : program_(program), bytes_(program) {}

  void Place(std::vector<Instruction>* list) {
    for (Instruction& i : *list) {
      std::fill(std::begin(i.offset), std::end(i.offset), -1);
      int slot = 0;
      for (const Operand& operand : Info(i.op).writes) {
        const Value value = Resolve(operand, i, program_.stages);
        if (value.kind == Kind::kNone || value.micro < 0 ||
            Info(value.kind).kind_class != KindClass::kValue)
          continue;
        for (const int64_t bytes : {bytes_(value), bytes_.SecondPiece(i.op, value)})
          if (bytes > 0) i.offset[slot++] = Take(bytes);
      }
    }
  }

  int64_t Take(int64_t bytes) {
    const int64_t begin = (end_ + kAlign - 1) / kAlign * kAlign;
    end_ = begin + bytes;
    return begin;
  }

  int64_t end() const { return end_; }

 private:
  const Program& program_;
  const ValueBytes bytes_;
  int64_t end_ = 0;
};

}  // namespace

Program SampleProgram(const SampleArgs& args) {
  Program program = Head(args);
  for (int d = 0; d < args.devices; ++d) Writer(args, d, &program).Run();
  GiveMemory(&program);
  return program;
}

void GiveMemory(Program* program) {
  const Regions regions(*program);
  for (int d = 0; d < program->devices; ++d) {
    DeviceList& list = program->lists[d];
    Memory memory(*program);
    ForEachList(list, [&](std::vector<Instruction>& one) { memory.Place(&one); });
    list.regions = regions.On(d);
    for (Region& region : list.regions) region.offset = memory.Take(region.bytes);
    list.arena_bytes = memory.end();
  }
}

}  // namespace pp
