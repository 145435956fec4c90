// reduce-gradients: what follows the last backwards.
//
// If a stage has several copies (replicas, pipes), its gradients are summed over them bucket by
// bucket (schema/semantics/buckets.h), as soon as the last backward has added its part, or where
// the scheme says so, or at the end. A tensor that stages share (tied embeddings: one matrix at
// both ends of the model) has a gradient in every copy of each of them; all of these are summed
// together. Then the norm of all gradients is taken, block by block in model order, and every stage
// steps.
//
//   device 0 holds s0         device 0 holds s0
//     ...                       ...
//     BW        s0 m1     =>    BW        s0 m1
//                               REDUCE_grad s0 b0        two replicas
//                               REDUCE_tied              stage 0 is tied to another one
//                               WAIT      wgrad s0 b0
//                               WAIT      tied
//                               NORM_grad s0
//                               REDUCE_norm
//                               WAIT      norm
//                               STEP      s0
//
// With --zero 1 a copy keeps only its shard of each bucket (SCATTER_grad), updates it, and gathers
// the others' weights after its step (GATHER_weights).
//
// With --grad-norm off there is no norm, and each copy steps as soon as its own gradients are
// complete:
//
//     WAIT wgrad s1 b0, STEP s1, WAIT wgrad s0 b0, WAIT tied, STEP s0
//
// If the scheme has steps of its own (PipeDream), each is preceded by its reductions; there is no
// norm, which would drain the pipeline.
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "compiler/pass.h"
#include "compiler/play/ideal.h"
#include "schema/sections.h"
#include "schema/semantics/alike.h"
#include "schema/semantics/buckets.h"
#include "schema/semantics/placement.h"

namespace pp {
namespace {

using List = std::vector<Instruction>;

// One copy of a stage on a device.
struct Copy {
  int stage;
  int16_t pipe;  // -1 where there is one
};

class Reducer {
 public:
  Reducer(Program& program, const PassContext& context)
      : program_(program),
        context_(context),
        placement_(program),
        late_(context.reduce == Reduce::kLate),
        reduces_(program.Copies() > 1),
        shards_(reduces_ && program.zero == 1),
        tied_(program.TiedStages()) {}

  Status Run() {
    if (reduces_) PP_RETURN_IF_ERROR(CountBuckets());
    if (HasSteps()) return AroundSteps();
    std::map<int, double> ready;  // by stage, if copies on several devices must agree
    if (program_.pipes.size() > 1) PP_RETURN_IF_ERROR(FindReady(&ready));
    for (int device = 0; device < program_.devices; ++device) {
      const std::map<int, size_t> marks = TakeMarks(ListOf(device));
      const std::vector<Start> starts = StartsOn(device, ready, marks);
      InsertStarts(device, starts);
      program_.clip ? StepTogether(device) : StepOneByOne(device, starts);
    }
    return {};
  }

 private:
  List& ListOf(int device) { return program_.lists[device].body; }
  static bool AddsPart(const Instruction& i) {
    return i.op == Op::kBackward || i.op == Op::kBackwardWeight;
  }

  std::vector<Copy> CopiesOn(int device) const {
    std::vector<Copy> copies;
    for (const auto [stage, pipe] : placement_.On(device))
      copies.push_back({stage, static_cast<int16_t>(program_.pipes.size() > 1 ? pipe : -1)});
    return copies;
  }
  bool TakesPartInTied(int device) const {
    const auto copies = placement_.On(device);
    return std::any_of(copies.begin(), copies.end(),
                       [&](const Placement::Copy& copy) { return program_.IsTied(copy.stage); });
  }

  Status CountBuckets() {
    for (int stage = 0; stage < program_.stages; ++stage) {
      if (IsLikeBefore(program_, stage)) {
        buckets_.push_back(buckets_.back());
        continue;
      }
      const std::vector<Bucket> buckets = BucketsOf(program_, stage);
      if (buckets.size() >= INT16_MAX)
        return Status::Invalid(
            fmt::format("--model: the gradients of stage {} take {} buckets (at "
                        "most {}: smaller stages)",
                        stage, buckets.size(), INT16_MAX - 1));
      buckets_.push_back({static_cast<int>(buckets.size()), CountReduced(buckets)});
    }
    return {};
  }

  // One instruction per bucket: those that are reduced, or all.
  List Buckets(Instruction i, const Copy& copy) const {
    List out;
    i.stage = copy.stage;
    i.pipe = copy.pipe;
    const bool gathers = i.op == Op::kGatherWeights || i.value == Kind::kWeights;
    const BucketCount& buckets = buckets_[copy.stage];
    const int count = gathers ? buckets.all : buckets.reduced;
    for (int b = 0; b < count; ++b) {
      i.bucket = static_cast<int16_t>(b);
      out.push_back(i);
    }
    return out;
  }
  List Starts(const Copy& copy) const {
    return Buckets({.op = shards_ ? Op::kScatterGrad : Op::kReduceGrad}, copy);
  }
  List Waits(Kind kind, const Copy& copy) const {
    return Buckets({.op = Op::kWait, .value = kind}, copy);
  }
  static void Append(List& list, const List& more) {
    list.insert(list.end(), more.begin(), more.end());
  }

  // ---- A flush: one step after all backwards.

  // When the last copy of each stage is complete.
  Status FindReady(std::map<int, double>* ready) {
    const std::vector<Message> messages = FindMessages(program_);
    const auto spans =
        IdealTimeline(program_, messages, PositiveDurations(context_.costs, program_));
    if (!spans.ok()) return spans.status();
    for (int d = 0; d < program_.devices; ++d)
      for (size_t i = 0; i < ListOf(d).size(); ++i)
        if (const Instruction& at = ListOf(d)[i]; AddsPart(at))
          (*ready)[at.stage] = std::max((*ready)[at.stage], (*spans)[d][i].end);
    return {};
  }

  // Removes the scheme's own marks from a list. Stage -> position of its mark.
  static std::map<int, size_t> TakeMarks(List& list) {
    std::map<int, size_t> marks;
    size_t kept = 0;
    for (const Instruction& i : list) {
      if (i.op == Op::kReduceGrad) {
        marks[i.stage] = kept;
      } else {
        list[kept++] = i;
      }
    }
    list.resize(kept);
    return marks;
  }

  using Behind = std::map<std::pair<int, int>, size_t>;  // by stage and pipe, as in Copy

  // After the last backward that adds to each copy.
  Behind BehindLastParts(const List& list) const {
    Behind behind;
    for (size_t i = 0; i < list.size(); ++i)
      if (const Instruction& at = list[i]; AddsPart(at))
        behind[{at.stage, program_.pipes.size() > 1 ? program_.pipe_of[at.micro] : -1}] = i + 1;
    return behind;
  }

  // The reductions of one copy, or the tied sum.
  struct Start {
    double ready;
    size_t position;
    Copy copy;  // stage -1: the tied sum
    List instructions;
  };

  // In execution order; there is one for each copy, even if it has nothing to reduce.
  std::vector<Start> StartsOn(int device, const std::map<int, double>& ready,
                              const std::map<int, size_t>& marks) {
    const List& list = ListOf(device);
    std::vector<Start> starts;
    auto ready_at = [&](int stage) {
      const auto time = ready.find(stage);
      return time == ready.end() ? 0 : time->second;
    };
    const Behind behind_parts = BehindLastParts(list);
    size_t behind_tied = 0;
    for (const Copy& copy : CopiesOn(device)) {
      const auto last = behind_parts.find({copy.stage, copy.pipe});
      const size_t behind = last == behind_parts.end() ? list.size() : last->second;
      if (program_.IsTied(copy.stage)) behind_tied = std::max(behind_tied, behind);
      const auto mark = marks.find(copy.stage);
      starts.push_back({ready_at(copy.stage), mark != marks.end() && !late_ ? mark->second : behind,
                        copy, reduces_ ? Starts(copy) : List()});
    }
    if (TakesPartInTied(device)) {
      double all = 0;
      for (const int32_t stage : tied_) all = std::max(all, ready_at(stage));
      starts.push_back({all, behind_tied, {.stage = -1, .pipe = -1}, {{.op = Op::kReduceTied}}});
    }
    // All devices that share a stage or the tied tensor reduce them in one order, that of `ready`.
    // Those that share only the tied tensor use the order of the list.
    const bool shared = program_.pipes.size() > 1;
    std::sort(starts.begin(), starts.end(), [shared](const Start& a, const Start& b) {
      return std::tuple(a.ready, shared ? size_t{0} : a.position, -a.copy.stage) <
             std::tuple(b.ready, shared ? size_t{0} : b.position, -b.copy.stage);
    });
    // A reduction waits only for its gradients and its lane, wherever it is in the list. At the end
    // means after the one that is ready last, which goes first.
    if (late_) std::reverse(starts.begin(), starts.end());
    for (size_t s = 1; s < starts.size(); ++s)
      starts[s].position = std::max(starts[s].position, starts[s - 1].position);
    return starts;
  }

  void InsertStarts(int device, const std::vector<Start>& starts) {
    List& list = ListOf(device);
    List with;
    with.reserve(list.size() + starts.size());
    size_t next = 0;
    for (const Start& start : starts) {
      with.insert(with.end(), list.begin() + next, list.begin() + start.position);
      next = start.position;
      Append(with, start.instructions);
    }
    with.insert(with.end(), list.begin() + next, list.end());
    list = std::move(with);
  }

  // After the norm of all gradients.
  void StepTogether(int device) {
    List& list = ListOf(device);
    const std::vector<Copy> copies = CopiesOn(device);
    for (const Copy& copy : copies)
      if (reduces_) Append(list, Waits(Kind::kWgrad, copy));
    if (TakesPartInTied(device)) list.push_back({.op = Op::kWait, .value = Kind::kTied});
    for (const Copy& copy : copies)
      if (copy.pipe <= 0 || shards_)
        list.push_back({.op = Op::kNormGrad, .pipe = copy.pipe, .stage = copy.stage});
    list.push_back({.op = Op::kReduceNorm});
    list.push_back({.op = Op::kWait, .value = Kind::kNorm});
    for (const Copy& copy : copies) Step(list, copy);
    for (const Copy& copy : copies)
      if (shards_) Append(list, Waits(Kind::kWeights, copy));
  }

  // Each copy as soon as its own gradients are complete, in the order of the reductions; a tied
  // one not before the tied sum.
  void StepOneByOne(int device, const std::vector<Start>& starts) {
    List& list = ListOf(device);
    std::vector<Copy> behind_tied;
    bool tied_ahead = TakesPartInTied(device);
    for (const Start& start : starts) {
      if (start.copy.stage < 0) {
        list.push_back({.op = Op::kWait, .value = Kind::kTied});
        for (const Copy& copy : behind_tied) Step(list, copy);
        tied_ahead = false;
        continue;
      }
      if (reduces_) Append(list, Waits(Kind::kWgrad, start.copy));
      if (tied_ahead && program_.IsTied(start.copy.stage)) {
        behind_tied.push_back(start.copy);
      } else {
        Step(list, start.copy);
      }
    }
    for (const Start& start : starts)
      if (shards_ && start.copy.stage >= 0) Append(list, Waits(Kind::kWeights, start.copy));
  }

  void Step(List& list, const Copy& copy) const {
    list.push_back({.op = Op::kStep, .pipe = copy.pipe, .stage = copy.stage});
    if (shards_) Append(list, Buckets({.op = Op::kGatherWeights}, copy));
  }

  // ---- No flush: the scheme says when it steps.

  bool HasSteps() const {
    return std::any_of(program_.lists.begin(), program_.lists.end(), [](const DeviceList& list) {
      return std::any_of(list.body.begin(), list.body.end(),
                         [](const Instruction& i) { return i.op == Op::kStep; });
    });
  }

  Status AroundSteps() {
    if (!tied_.empty())
      return Status::Invalid(
          fmt::format("{} need a flush, {} has none ({}another scheme)",
                      program_.job ? "--model: tied embeddings" : "--tied: tied stages",
                      program_.scheme, program_.job ? "tie_word_embeddings: false, or " : ""));
    for (int device = 0; device < program_.devices && reduces_; ++device) {
      List with;
      for (const Instruction& i : ListOf(device)) {
        const Copy copy{i.stage, i.pipe};
        if (i.op == Op::kStep) Append(with, Starts(copy)), Append(with, Waits(Kind::kWgrad, copy));
        with.push_back(i);
        if (i.op == Op::kStep && shards_) {
          Append(with, Buckets({.op = Op::kGatherWeights}, copy));
          Append(with, Waits(Kind::kWeights, copy));
        }
      }
      ListOf(device) = std::move(with);
    }
    return {};
  }

  Program& program_;
  const PassContext& context_;
  const Placement placement_;
  struct BucketCount {
    int all, reduced;
  };
  std::vector<BucketCount> buckets_;  // by stage, where there is something to reduce
  const bool late_, reduces_, shards_;
  const std::vector<int32_t> tied_;
};

}  // namespace

Status ReduceGradients(Program& program, const PassContext& context) {
  return Reducer(program, context).Run();
}

}  // namespace pp
