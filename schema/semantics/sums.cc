#include "schema/semantics/sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/semantics/buckets.h"
#include "schema/text.h"

namespace pp {

Sums::Sums(const Program& program, const Placement& placement, int device, Depth depth, int bodies)
    : program_(program), device_(device), depth_(depth) {
  for (const auto [stage, pipe] : placement.On(device))
    sums_.push_back(
        {.stage = stage,
         .pipe = pipe,
         .all_parts = std::count(program.pipe_of.begin(), program.pipe_of.end(), pipe) / bodies});
  const auto& list = program.lists[device].body;
  versions_ = std::any_of(list.begin(), list.end(),
                          [](const Instruction& i) { return i.op == Op::kStep && i.version >= 0; });
  norm_ = program.clip && !versions_;
}

const Sums::Sum* Sums::Find(int stage, int pipe) const {
  const std::pair copy(stage, std::max(pipe, 0));
  const auto at = std::lower_bound(
      sums_.begin(), sums_.end(), copy,
      [](const Sum& sum, const auto& wanted) { return std::pair(sum.stage, sum.pipe) < wanted; });
  return at == sums_.end() || std::pair(at->stage, at->pipe) != copy ? nullptr : &*at;
}
Sums::Sum* Sums::Find(int stage, int pipe) {
  return const_cast<Sum*>(std::as_const(*this).Find(stage, pipe));
}

const Sums::BucketCount& Sums::BucketsIn(const Sum& sum) const {
  if (sum.buckets.all < 0) {
    const std::vector<Bucket> buckets = BucketsOf(program_, sum.stage);
    sum.buckets = {static_cast<int>(buckets.size()), CountReduced(buckets)};
  }
  return sum.buckets;
}

Status Sums::CheckVersion(const Instruction& i) const {
  if (!HasField(i, Field::kVersion)) return {};
  if (versions_ && i.op != Op::kStep && Sharded()) {
    const Sum* sum = Find(i.stage, program_.pipe_of[i.micro]);
    if (sum->steps > 0 && (sum->flying > 0 || sum->gathered < BucketsIn(*sum).all))
      return Status::Invalid(fmt::format("before weights s{} are gathered", i.stage));
  }
  if ((i.version >= 0) == versions_) return {};
  return Status::Invalid(versions_ ? "has no version (this device's STEPs make versions)"
                                   : "has a version (this device's STEPs make none)");
}

int32_t Sums::VersionOf(const Instruction& i) const {
  if (i.version < 0) return -1;
  const Sum* sum = Find(i.stage, program_.pipe_of[i.micro]);
  return sum == nullptr ? -1 : std::max(0, sum->steps - i.version);
}

Status Sums::AddPart(const Instruction& i, int index) {
  Sum* sum = Find(i.stage, program_.pipe_of[i.micro]);
  if (sum->reduced > 0 || sum->normed || (program_.IsTied(sum->stage) && tied_started_))
    return Status::Invalid(fmt::format("adds to wgrad s{} after its reduction", i.stage));
  ++sum->parts;
  sum->last_part = index;
  return {};
}

// Every micro-batch of its pipe must have added its part, or, between two versions of the
// weights, at least one.
Status Sums::Complete(const Sum& sum) const {
  if (sum.stepped) return Status::Invalid(fmt::format("after STEP s{}", sum.stage));
  const int64_t parts = versions_ ? std::max<int64_t>(1, sum.parts) : sum.all_parts;
  if (sum.parts != parts)
    return Status::Invalid(fmt::format("wgrad s{} has the parts of {} micro-batches out of {}",
                                       sum.stage, sum.parts, parts));
  return {};
}

// Ready for the norm and the step: complete, and nothing under way or left out.
Status Sums::Final(const Sum& sum) {
  PP_RETURN_IF_ERROR(Complete(sum));
  if (sum.flying > 0)
    return Status::Invalid(fmt::format("wgrad s{} is being reduced (WAIT for it)", sum.stage));
  if (program_.IsTied(sum.stage) && !sum.tied)
    return Status::Invalid(fmt::format("before 'WAIT tied' of s{}", sum.stage));
  if (const int all = BucketsIn(sum).reduced; program_.Copies() > 1 && sum.reduced < all)
    return Status::Invalid(fmt::format("wgrad s{} has {} of {} buckets reduced over its copies",
                                       sum.stage, sum.reduced, all));
  return {};
}

Status Sums::Visit(const Instruction& i, int index, int* after) {
  if (i.op == Op::kReduceTied) return StartTied(index, after);
  if (i.op == Op::kReduceNorm) return StartNorm(index, after);
  Sum* sum = Find(i.stage, i.pipe);
  if (sum == nullptr)
    return Status::Invalid(
        fmt::format("stage {} is on device {}", i.stage,
                    program_.pipes[std::max<int>(i.pipe, 0)].device_of[i.stage]));
  if (i.op == Op::kNormGrad) return Norm(*sum, index);
  if (i.op == Op::kStep) return Step(*sum, i, index);
  return StartBucket(*sum, i, index, after);
}

// REDUCE_grad, SCATTER_grad, GATHER_weights: one bucket after the other.
Status Sums::StartBucket(Sum& sum, const Instruction& i, int index, int* after) {
  const bool gather = i.op == Op::kGatherWeights;
  if (program_.Copies() == 1 && depth_ != Depth::kSchedule)
    return Status::Invalid(fmt::format("stage {} has one copy", i.stage));
  if (Sharded() == (i.op == Op::kReduceGrad) && depth_ != Depth::kSchedule)
    return Status::Invalid(fmt::format("in a program with zero {}", program_.zero));
  int32_t& buckets = gather ? sum.gathered : sum.reduced;
  if (gather && sum.steps == 0) return Status::Invalid(fmt::format("before STEP s{}", i.stage));
  if (!gather) PP_RETURN_IF_ERROR(Complete(sum));
  if (!gather && sum.normed) return Status::Invalid("after NORM_grad");
  int all = gather ? BucketsIn(sum).all : BucketsIn(sum).reduced;
  // A scheme also marks where a stage without parameters would begin.
  if (depth_ == Depth::kSchedule) all = std::max(all, 1);
  if (i.bucket != buckets || i.bucket >= all)
    return Status::Invalid(fmt::format("bucket {} (b{} is next, of {})", i.bucket, buckets, all));
  ++buckets;
  ++sum.flying;
  *after = gather ? sum.last_step : sum.last_part;
  flying_.emplace(Instruction{.op = Op::kWait,
                              .value = gather ? Kind::kWeights : Kind::kWgrad,
                              .bucket = i.bucket,
                              .pipe = i.pipe,
                              .stage = i.stage},
                  index);
  return {};
}

// The sums of tied stages, of all pipes, that this device holds.
std::vector<Sums::Sum*> Sums::TiedSums() {
  std::vector<Sum*> found;
  for (Sum& sum : sums_)
    if (program_.IsTied(sum.stage)) found.push_back(&sum);
  return found;
}

// It takes part with all of them together.
Status Sums::StartTied(int index, int* after) {
  const std::vector<Sum*> tied = TiedSums();
  if (tied.empty()) return Status::Invalid(fmt::format("device {} holds no tied stage", device_));
  if (tied_started_) return Status::Invalid("a second time");
  tied_started_ = true;
  for (Sum* sum : tied) {
    PP_RETURN_IF_ERROR(Complete(*sum));
    ++sum->flying;
    *after = std::max(*after, sum->last_part);
  }
  flying_.emplace(Instruction{.op = Op::kWait, .value = Kind::kTied}, index);
  return {};
}

Status Sums::Norm(Sum& sum, int index) {
  if (!norm_) return Status::Invalid("in a program without a gradient norm");
  PP_RETURN_IF_ERROR(Final(sum));
  if (sum.normed) return Status::Invalid("a second time");
  if (!HasNorm(sum)) return Status::Invalid("the norm takes the copy of pipe 0");
  sum.normed = true;
  last_norm_ = index;
  return {};
}

Status Sums::StartNorm(int index, int* after) {
  if (!norm_) return Status::Invalid("in a program without a gradient norm");
  for (const Sum& sum : sums_)
    if (HasNorm(sum) && !sum.normed)
      return Status::Invalid(fmt::format("before NORM_grad s{}", sum.stage));
  if (norm_started_) return Status::Invalid("a second time");
  norm_started_ = true;
  flying_.emplace(Instruction{.op = Op::kWait, .value = Kind::kNorm}, index);
  *after = last_norm_;
  return {};
}

Status Sums::Step(Sum& sum, const Instruction& i, int index) {
  PP_RETURN_IF_ERROR(CheckVersion(i));
  if (versions_ && program_.IsTied(sum.stage))
    return Status::Invalid("several versions of a tied tensor");
  if (i.version > 0) return Status::Invalid("makes the newest version (v0)");
  PP_RETURN_IF_ERROR(Final(sum));
  if (norm_ && !norm_here_) return Status::Invalid("STEP before 'WAIT norm'");
  if (Sharded() && sum.steps > 0 && sum.gathered < BucketsIn(sum).all)
    return Status::Invalid(fmt::format("before weights s{} are gathered", sum.stage));
  sum.stepped_parts += sum.parts;
  sum.last_step = index;
  ++sum.steps;
  if (versions_) {
    sum.parts = sum.reduced = sum.gathered = 0;
  } else {
    sum.stepped = true;
  }
  return {};
}

Status Sums::Wait(const Instruction& i, int* after) {
  Instruction plain = i;
  std::fill(std::begin(plain.offset), std::end(plain.offset), -1);
  const auto found = flying_.lower_bound(plain);
  if (found == flying_.end() || !(found->first == plain))
    return Status::Invalid("no such reduction is under way");
  *after = found->second;
  flying_.erase(found);
  if (i.value == Kind::kNorm) norm_here_ = true;
  if (i.value == Kind::kTied)
    for (Sum* sum : TiedSums()) --sum->flying, sum->tied = true;
  if (i.value == Kind::kWgrad || i.value == Kind::kWeights) --Find(i.stage, i.pipe)->flying;
  return {};
}

Status Sums::CheckEnd(int* index) {
  *index = -1;
  if (!flying_.empty() && depth_ != Depth::kSchedule) {
    *index = std::min_element(flying_.begin(), flying_.end(), [](const auto& a, const auto& b) {
               return a.second < b.second;
             })->second;
    return Status::Invalid("is never waited for");
  }
  for (Sum& sum : sums_) {
    const std::string where = fmt::format("device {}", device_);
    if (depth_ != Depth::kSchedule && sum.steps == 0)
      return Status::Invalid(fmt::format("{}: no STEP s{}", where, sum.stage));
    const int64_t parts = versions_ ? sum.stepped_parts : sum.parts;
    if (parts != sum.all_parts)
      return Status::Invalid(
          fmt::format("{}, at the end: wgrad s{} has the parts of {} micro-batches out of {}",
                      where, sum.stage, parts, sum.all_parts));
    const int all = Sharded() && depth_ != Depth::kSchedule ? BucketsIn(sum).all : 0;
    if (sum.gathered < all)
      return Status::Invalid(
          fmt::format("{}, at the end: weights s{} has {} of {} buckets gathered", where, sum.stage,
                      sum.gathered, all));
  }
  return {};
}

Status Sums::NextBody(int* index) {
  PP_RETURN_IF_ERROR(CheckEnd(index));
  for (Sum& sum : sums_)
    sum = {
        .stage = sum.stage, .pipe = sum.pipe, .all_parts = sum.all_parts, .buckets = sum.buckets};
  last_norm_ = -1;
  tied_started_ = norm_started_ = norm_here_ = false;
  return {};
}

}  // namespace pp
