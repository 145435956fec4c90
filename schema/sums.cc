#include "schema/sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "schema/buckets.h"
#include "schema/text.h"

namespace pp {

Sums::Sums(const Program& program, int device, Depth depth)
    : program_(program), device_(device), depth_(depth), buckets_(program.stages, 0) {
  for (int stage : program.StagesOf(device))
    for (int pipe : program.PipesOf(stage, device)) sums_.push_back({.stage = stage, .pipe = pipe});
  const auto& list = program.lists[device].body;
  versions_ = std::any_of(list.begin(), list.end(),
                          [](const Instruction& i) { return i.op == Op::kStep && i.version >= 0; });
}

const Sums::Sum* Sums::Find(int stage, int pipe) const {
  for (const Sum& sum : sums_)
    if (sum.stage == stage && sum.pipe == std::max(pipe, 0)) return &sum;
  return nullptr;
}
Sums::Sum* Sums::Find(int stage, int pipe) {
  return const_cast<Sum*>(std::as_const(*this).Find(stage, pipe));
}

int Sums::BucketCount(int stage) const {
  if (buckets_[stage] == 0) buckets_[stage] = static_cast<int>(BucketsOf(program_, stage).size());
  return buckets_[stage];
}

bool Sums::IsTied(int stage) const {
  return program_.job && program_.job->model.tie_word_embeddings &&
         (stage == 0 || stage == program_.stages - 1);
}

int64_t Sums::PartsOf(const Sum& sum) const {
  return std::count(program_.pipe_of.begin(), program_.pipe_of.end(), sum.pipe);
}

Status Sums::CheckVersion(const Instruction& i) const {
  if (!Info(i.op).Has(Field::kVersion)) return {};
  if (versions_ && i.op != Op::kStep && Sharded()) {
    const Sum* sum = Find(i.stage, program_.pipe_of[i.micro]);
    if (sum->steps > 0 && (sum->flying > 0 || sum->gathered < BucketCount(i.stage)))
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
  if (sum->reduced > 0 || sum->tied || sum->normed)
    return Status::Invalid(fmt::format("adds to wgrad s{} after its reduction", i.stage));
  ++sum->parts;
  sum->last_part = index;
  return {};
}

// Every micro-batch of its pipe must have added its part, or, between two versions of the
// weights, at least one.
Status Sums::Complete(const Sum& sum) const {
  if (sum.stepped) return Status::Invalid(fmt::format("after STEP s{}", sum.stage));
  const int64_t parts = versions_ ? std::max<int64_t>(1, sum.parts) : PartsOf(sum);
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
  if (IsTied(sum.stage) && !sum.tied)
    return Status::Invalid(fmt::format("before 'WAIT tied' of s{}", sum.stage));
  if (program_.Copies() > 1 && sum.reduced < BucketCount(sum.stage))
    return Status::Invalid(fmt::format("wgrad s{} has {} of {} buckets reduced over its copies",
                                       sum.stage, sum.reduced, BucketCount(sum.stage)));
  return {};
}

Status Sums::Visit(const Instruction& i, int index, int* after) {
  if (i.op == Op::kReduceTied) return StartTied(i, index, after);
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
  if (!gather && (sum.normed || (sum.tied && !Sharded())))
    return Status::Invalid("after the sum over the tied embedding or NORM_grad");
  if (!gather && Sharded() && IsTied(sum.stage) && !sum.tied)
    return Status::Invalid(fmt::format("before 'WAIT tied' of s{}", sum.stage));
  if (i.bucket != buckets || i.bucket >= BucketCount(i.stage))
    return Status::Invalid(
        fmt::format("bucket {} (b{} is next, of {})", i.bucket, buckets, BucketCount(i.stage)));
  ++buckets;
  ++sum.flying;
  *after = gather ? sum.last_step : sum.last_part;
  flying_.push_back({{.op = Op::kWait,
                      .value = gather ? Kind::kWeights : Kind::kWgrad,
                      .bucket = i.bucket,
                      .pipe = i.pipe,
                      .stage = i.stage},
                     index});
  return {};
}

// The sums of the first and the last stage of a pipe where this device holds them.
std::vector<Sums::Sum*> Sums::TiedSums(int pipe) {
  std::vector<Sum*> found;
  for (int stage : {0, program_.stages - 1}) {
    Sum* sum = Find(stage, pipe);
    if (sum != nullptr && std::find(found.begin(), found.end(), sum) == found.end())
      found.push_back(sum);
  }
  return found;
}

Status Sums::StartTied(const Instruction& i, int index, int* after) {
  const std::vector<Sum*> ends = TiedSums(i.pipe);
  if (ends.empty())
    return Status::Invalid(
        fmt::format("device {} holds neither the first nor the last stage", device_));
  for (Sum* sum : ends) {
    PP_RETURN_IF_ERROR(Complete(*sum));
    if (sum->flying > 0)
      return Status::Invalid(fmt::format("wgrad s{} is being reduced (WAIT for it)", sum->stage));
    if (sum->normed) return Status::Invalid("after NORM_grad");
    if (sum->tied) return Status::Invalid("a second time");
    if (!Sharded() && program_.Copies() > 1 && sum->reduced < BucketCount(sum->stage))
      return Status::Invalid(fmt::format("before wgrad s{} is reduced", sum->stage));
    ++sum->flying;
    *after = std::max(*after, std::max(sum->last_part, sum->last_wait));
  }
  flying_.push_back({{.op = Op::kWait, .value = Kind::kTied, .pipe = i.pipe}, index});
  return {};
}

Status Sums::Norm(Sum& sum, int index) {
  PP_RETURN_IF_ERROR(Final(sum));
  if (sum.normed) return Status::Invalid("a second time");
  if (!HasNorm(sum)) return Status::Invalid("the norm takes the copy of pipe 0");
  sum.normed = true;
  last_norm_ = index;
  return {};
}

Status Sums::StartNorm(int index, int* after) {
  for (const Sum& sum : sums_)
    if (HasNorm(sum) && !sum.normed)
      return Status::Invalid(fmt::format("before NORM_grad s{}", sum.stage));
  if (norm_started_) return Status::Invalid("a second time");
  norm_started_ = true;
  flying_.push_back({{.op = Op::kWait, .value = Kind::kNorm}, index});
  *after = last_norm_;
  return {};
}

Status Sums::Step(Sum& sum, const Instruction& i, int index) {
  PP_RETURN_IF_ERROR(CheckVersion(i));
  if (versions_ && IsTied(sum.stage)) return Status::Invalid("several versions of tied embeddings");
  if (i.version > 0) return Status::Invalid("makes the newest version (v0)");
  PP_RETURN_IF_ERROR(Final(sum));
  if (!versions_ && !norm_here_) return Status::Invalid("STEP before 'WAIT norm'");
  if (Sharded() && sum.steps > 0 && sum.gathered < BucketCount(sum.stage))
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

Status Sums::Wait(const Instruction& i, int index, int* after) {
  Instruction plain = i;
  plain.offset[0] = plain.offset[1] = -1;
  const auto found = std::find_if(flying_.begin(), flying_.end(),
                                  [&](const Flying& flying) { return flying.wait == plain; });
  if (found == flying_.end()) return Status::Invalid("no such reduction is under way");
  *after = found->index;
  flying_.erase(found);
  if (i.value == Kind::kNorm) norm_here_ = true;
  if (i.value == Kind::kTied)
    for (Sum* sum : TiedSums(i.pipe)) {
      --sum->flying;
      sum->tied = true;
      sum->last_wait = index;
    }
  if (i.value == Kind::kWgrad || i.value == Kind::kWeights) {
    Sum* sum = Find(i.stage, i.pipe);
    --sum->flying;
    sum->last_wait = index;
  }
  return {};
}

Status Sums::CheckEnd(int* index) {
  *index = -1;
  if (!flying_.empty() && depth_ != Depth::kSchedule) {
    *index = flying_.front().index;
    return Status::Invalid("is never waited for");
  }
  for (Sum& sum : sums_) {
    const std::string where = fmt::format("device {}", device_);
    if (depth_ != Depth::kSchedule && sum.steps == 0)
      return Status::Invalid(fmt::format("{}: no STEP s{}", where, sum.stage));
    const int64_t parts = versions_ ? sum.stepped_parts : sum.parts;
    if (parts != PartsOf(sum))
      return Status::Invalid(
          fmt::format("{}, at the end: wgrad s{} has the parts of {} micro-batches out of {}",
                      where, sum.stage, parts, PartsOf(sum)));
    if (depth_ != Depth::kSchedule && Sharded() && sum.gathered < BucketCount(sum.stage))
      return Status::Invalid(
          fmt::format("{}, at the end: weights s{} has {} of {} buckets gathered", where, sum.stage,
                      sum.gathered, BucketCount(sum.stage)));
  }
  return {};
}

}  // namespace pp
