#include "runtime/run/states.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <map>

#include "runtime/model/stretch.h"
#include "runtime/plan/binding.h"
#include "runtime/run/finite.h"
#include "schema/model/families.h"

namespace pp {
namespace {

constexpr int64_t kPiece = int64_t{1} << 22;  // elements of a record, at most

std::string NameOf(StateKind kind, const Tensor& tensor) {
  switch (kind) {
    case StateKind::kWeights:
      return tensor.name();
    case StateKind::kM:
      return "AdamW's m of " + tensor.name();
    case StateKind::kV:
      return "AdamW's v of " + tensor.name();
  }
  PP_CHECK(false);
}

class Saver {
 public:
  Saver(const RankStates& states, ShardWriter* shard, Status* unsaved)
      : states_(states),
        program_(*states.program),
        place_(states.place),
        shard_(*shard),
        unsaved_(*unsaved) {}

  Status Run() {
    for (int stage : program_.StagesOf(place_.device))
      for (int pipe : program_.PipesOf(stage, place_.device))
        PP_RETURN_IF_ERROR(SaveCopy(stage, pipe));
    if (unsaved_.ok()) unsaved_ = shard_.Finish();
    return {};
  }

 private:
  Status SaveCopy(int stage, int pipe) {
    const StageLayout layout = LayoutStage(*program_.job, stage);
    const StageCall copy = BindStage(program_, place_.device, stage, pipe, *states_.device);
    const std::byte* weights = copy.weights + states_.newest(stage, pipe);
    const bool first = place_.replica == 0 && pipe == 0;
    const bool sharded = program_.zero > 0 && program_.Copies() > 1;
    const auto mine = [&](const Tensor& tensor) {
      return !IsTiedCopy(layout.stage, tensor) && (tensor.cut != Cut::kNone || place_.index == 0);
    };
    if (!first && !sharded) return {};
    for (const Tensor& tensor : layout.tensors)
      if (first && !tensor.trainable() && mine(tensor))
        PP_RETURN_IF_ERROR(
            Add(StateKind::kWeights, tensor, 0, tensor.elements(), weights + tensor.weight));
    for (const OwnedPart& owned : OwnedPartsOf(program_, layout, place_.replica, pipe)) {
      const TensorPart& part = owned.part;
      if (!mine(*part.tensor)) continue;
      // Others' shards of the weights may still be on their way here.
      PP_RETURN_IF_ERROR(Add(StateKind::kWeights, *part.tensor, part.begin, part.count,
                             weights + part.tensor->weight + part.begin * 4));
      PP_RETURN_IF_ERROR(
          Add(StateKind::kM, *part.tensor, part.begin, part.count, copy.optimizer + owned.m));
      PP_RETURN_IF_ERROR(
          Add(StateKind::kV, *part.tensor, part.begin, part.count, copy.optimizer + owned.v));
    }
    return {};
  }

  Status Add(StateKind kind, const Tensor& tensor, int64_t begin, int64_t count,
             const std::byte* from) {
    for (int64_t done = 0; done < count; done += kPiece) {
      const int64_t numbers = std::min(kPiece, count - done);
      piece_.resize(numbers);
      Queue& queue = states_.device->compute();
      const Ticket ticket = queue.CopyOut(piece_.data(), from + done * 4, numbers * 4);
      queue.WaitFor(ticket);
      PP_RETURN_IF_ERROR(states_.device->status());
      PP_RETURN_IF_ERROR(CheckFinite(NameOf(kind, tensor), begin + done, piece_));
      if (unsaved_.ok())
        unsaved_ = shard_.Add({.kind = kind,
                               .tensor = tensor.id,
                               .peer = {place_.index, program_.job->tp},
                               .begin = begin + done,
                               .count = numbers},
                              piece_.data());
      states_.on_piece();
    }
    return {};
  }

  const RankStates& states_;
  const Program& program_;
  const Place& place_;
  ShardWriter& shard_;
  Status& unsaved_;
  std::vector<float> piece_;
};

class Loader {
 public:
  Loader(const Checkpoint& checkpoint, const RankStates& states)
      : checkpoint_(checkpoint), states_(states), program_(*states.program), place_(states.place) {
    for (const ShardReader& shard : checkpoint.shards)
      for (const StateRecord& record : shard.records())
        records_[{record.kind, record.tensor}].push_back({&shard, &record});
  }

  Status Run() {
    for (int stage : program_.StagesOf(place_.device))
      for (int pipe : program_.PipesOf(stage, place_.device))
        PP_RETURN_IF_ERROR(LoadCopy(stage, pipe));
    return {};
  }

 private:
  struct Source {
    const ShardReader* shard;
    const StateRecord* record;
  };

  Status LoadCopy(int stage, int pipe) {
    const StageLayout layout = LayoutStage(*program_.job, stage);
    const StageCall copy = BindStage(program_, place_.device, stage, pipe, *states_.device);
    for (const Tensor& tensor : layout.tensors)
      PP_RETURN_IF_ERROR(
          Load(StateKind::kWeights, tensor, 0, tensor.elements(), copy.weights + tensor.weight));
    for (const OwnedPart& owned : OwnedPartsOf(program_, layout, place_.replica, pipe)) {
      const TensorPart& part = owned.part;
      PP_RETURN_IF_ERROR(
          Load(StateKind::kM, *part.tensor, part.begin, part.count, copy.optimizer + owned.m));
      PP_RETURN_IF_ERROR(
          Load(StateKind::kV, *part.tensor, part.begin, part.count, copy.optimizer + owned.v));
    }
    return {};
  }

  // Local elements [begin, begin + count) of the tensor. Padding is zeros.
  Status Load(StateKind kind, const Tensor& tensor, int64_t begin, int64_t count, std::byte* to) {
    const Peer here = {place_.index, program_.job->tp};
    const std::vector<Stretch> wanted = Within(StretchesOf(tensor, here), begin, count);
    int64_t missing = 0;
    for (const auto& run : wanted) missing += run.count;
    numbers_.assign(count, 0);
    for (const Source& source : records_[{kind, tensor.id}]) {
      const StateRecord& record = *source.record;
      const std::vector<Stretch> there =
          Within(StretchesOf(TensorOf(tensor.id, record.peer.of), record.peer), record.begin,
                 record.count);
      missing -= Copy(source, there, wanted, begin);
      PP_RETURN_IF_ERROR(status_);
    }
    if (missing != 0)
      return Status::Invalid(
          fmt::format("{}: lacks some elements of {}", checkpoint_.folder, tensor.name()));
    Queue& queue = states_.device->compute();
    queue.CopyIn(to, numbers_.data(), count * 4);
    return {};
  }

  // Copies what both have; returns the number of elements.
  int64_t Copy(const Source& source, const std::vector<Stretch>& there,
               const std::vector<Stretch>& wanted, int64_t begin) {
    int64_t copied = 0;
    bool read = false;
    for (size_t a = 0, b = 0; a < there.size() && b < wanted.size();) {
      const auto &from = there[a], &to = wanted[b];
      const int64_t first = std::max(from.element, to.element);
      const int64_t end = std::min(from.element + from.count, to.element + to.count);
      if (first < end) {
        if (!std::exchange(read, true)) {
          piece_.resize(source.record->count);
          status_ = source.shard->Read(*source.record, piece_.data());
          if (!status_.ok()) return copied;
        }
        std::copy_n(piece_.data() + from.local + first - from.element - source.record->begin,
                    end - first, numbers_.data() + to.local + first - to.element - begin);
        copied += end - first;
      }
      (from.element + from.count < to.element + to.count ? a : b) += 1;
    }
    return copied;
  }

  // One peer's part of a parameter, of `tp` peers.
  const Tensor& TensorOf(int id, int tp) {
    std::map<int, Tensor>& tensors = tensors_[tp];
    if (tensors.empty()) {
      Job job = *program_.job;
      job.layers_per_stage = {job.model.layers};
      job.tp = tp;
      for (const Tensor& tensor : LayoutStage(job, 0).tensors) tensors[tensor.id] = tensor;
    }
    return tensors.at(id);
  }

  const Checkpoint& checkpoint_;
  const RankStates& states_;
  const Program& program_;
  const Place& place_;
  std::map<std::pair<StateKind, int>, std::vector<Source>> records_;
  std::map<int, std::map<int, Tensor>> tensors_;  // by peers and id
  std::vector<float> numbers_, piece_;
  Status status_;
};

// The bytes of records that are this rank's share.
Status VerifyShare(const Checkpoint& checkpoint, const ModelConfig& model, int rank, int ranks) {
  const int most = TensorParallelLimit(TableOf(model));
  std::vector<float> numbers;
  int64_t number = 0;
  for (size_t writer = 0; writer < checkpoint.shards.size(); ++writer) {
    const ShardReader& shard = checkpoint.shards[writer];
    for (const StateRecord& record : shard.records()) {
      if (record.peer.of < 1 || most % record.peer.of != 0 || record.peer.index < 0 ||
          record.peer.index >= record.peer.of)
        return Status::Invalid(ShardPath(checkpoint.folder, static_cast<int>(writer)) +
                               ": belongs to another model");
      if (number++ % ranks != rank) continue;
      numbers.resize(record.count);
      PP_RETURN_IF_ERROR(shard.Read(record, numbers.data()));
    }
  }
  return {};
}

// Failed: this process may not open so many files.
Status CheckDescriptors(const std::string& folder, size_t shards) {
  constexpr size_t kOthers = 64;  // data, weights, logs, devices
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || shards + kOthers <= limit.rlim_cur) return {};
  return Status::Failed(
      fmt::format("{}: has {} parts, and this process may open {} files (ulimit -n {})", folder,
                  shards, limit.rlim_cur, shards + kOthers));
}

}  // namespace

Status SaveStates(const RankStates& states, const std::string& path, Status* unsaved) {
  Result<ShardWriter> shard = ShardWriter::Create(path, states.watch);
  *unsaved = shard.status();
  return shard.ok() ? Saver(states, &*shard, unsaved).Run() : Status();
}

int64_t CheckpointBytes(const Job& job) {
  Job whole = job;
  whole.layers_per_stage = {job.model.layers};
  whole.tp = 1;
  int64_t elements = 0;  // of weights and, if they are trained, of m and v
  for (const Tensor& tensor : LayoutStage(whole, 0).tensors)
    elements += tensor.elements() * (tensor.trainable() ? 3 : 1);
  return elements * static_cast<int64_t>(sizeof(float));
}

Result<Checkpoint> OpenCheckpoint(const std::string& folder, const ModelConfig& model, int rank,
                                  int ranks) {
  Result<Manifest> manifest = ReadManifest(folder);
  PP_RETURN_IF_ERROR(manifest.status());
  Checkpoint checkpoint{
      .folder = folder, .manifest = std::move(*manifest), .shards = {}, .source = {}};
  if (!CheckModel(checkpoint, model).ok()) return checkpoint;
  const std::vector<Manifest::Shard>& shards = checkpoint.manifest.shards;
  PP_RETURN_IF_ERROR(CheckDescriptors(folder, shards.size()));
  for (size_t writer = 0; writer < shards.size(); ++writer) {
    const std::string path = ShardPath(folder, static_cast<int>(writer));
    Result<ShardReader> shard = ShardReader::Open(path);
    PP_RETURN_IF_ERROR(shard.status());
    if (shard->bytes() != shards[writer].bytes || shard->footer_sum() != shards[writer].footer_sum)
      return Status::Invalid(path + ": belongs to another checkpoint");
    checkpoint.shards.push_back(std::move(*shard));
  }
  if (rank == 0 && checkpoint.manifest.source) {
    Result<SourceFiles> source = ReadSourceParts(folder, *checkpoint.manifest.source);
    PP_RETURN_IF_ERROR(source.status());
    checkpoint.source = std::move(*source);
  }
  PP_RETURN_IF_ERROR(VerifyShare(checkpoint, model, rank, ranks));
  return checkpoint;
}

Status CheckModel(const Checkpoint& checkpoint, const ModelConfig& model) {
  const std::string path = checkpoint.folder + "/manifest.json";
  if (!IsReadFormat(checkpoint.manifest.format))
    return Status::Invalid(fmt::format("{}: is of format {} (this piperun reads {} to {})", path,
                                       checkpoint.manifest.format, kOldestManifestFormat,
                                       kManifestFormat));
  const Result<ModelConfig> saved = ParseModelConfig(checkpoint.manifest.model, path);
  PP_RETURN_IF_ERROR(saved.status());
  return CheckSameWeights(*saved, path, model);
}

Status LoadStates(const Checkpoint& checkpoint, const RankStates& states) {
  return Loader(checkpoint, states).Run();
}

}  // namespace pp
