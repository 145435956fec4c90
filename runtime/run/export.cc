#include "runtime/run/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/comm/topology.h"
#include "runtime/run/finite.h"
#include "schema/model/families.h"
#include "schema/model/layout.h"

namespace pp {
namespace {

constexpr int64_t kPieceFloats = 1 << 20;

// Hugging Face's tensors, in model order.
std::vector<ModelFolderEntry> EntriesOf(const Job& job) {
  std::vector<ModelFolderEntry> entries;
  for (int stage = 0; stage < job.stages(); ++stage)
    for (const Tensor& tensor : LayoutStage(job, stage).tensors)
      if (!IsTiedCopy(stage, tensor))
        for (const Slice& slice : SlicesOf(tensor, {0, job.tp}))
          if (entries.empty() || entries.back().name != slice.name)
            entries.push_back({slice.name, slice.shape});
  return entries;
}

class Exporter {
 public:
  explicit Exporter(const ExportArgs& args)
      : args_(args),
        job_(*args.program->job),
        topology_(TopologyOf(*args.program)),
        writes_(args.exchange == nullptr || args.exchange->rank() == 0) {
    for (const ModelFolderEntry& entry : EntriesOf(job_))
      entry_of_.emplace(entry.name, entry_of_.size());
  }

  Status Run() {
    if (writes_) Keep(args_.folder->Start());
    for (int stage = 0; stage < job_.stages(); ++stage)
      for (const Tensor& tensor : LayoutStage(job_, stage).tensors)
        if (!IsTiedCopy(stage, tensor))
          for (int index = 0; index < (tensor.cut == Cut::kNone ? 1 : job_.tp); ++index)
            PP_RETURN_IF_ERROR(ExportTensor(stage, tensor, index));
    if (args_.exchange != nullptr) args_.exchange->SetComplete();
    return status_;
  }

 private:
  // This process's first error; the ranks continue, so that nobody waits for anyone.
  void Keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  // All of one peer's part of a tensor, some rows at a time.
  Status ExportTensor(int stage, const Tensor& tensor, int index) {
    const int owner = topology_.RankOf({0, args_.program->pipes[0].device_of[stage], index});
    const int64_t rows_at_once = std::max<int64_t>(1, kPieceFloats / tensor.cols);
    const std::vector<Slice> slices = SlicesOf(tensor, {index, job_.tp});
    for (int64_t row = 0; row < tensor.rows; row += rows_at_once) {
      const int64_t rows = std::min(rows_at_once, tensor.rows - row);
      piece_.resize(rows * tensor.cols);
      PP_RETURN_IF_ERROR(Fetch(owner, stage, tensor, row * tensor.cols));
      if (!writes_) continue;
      for (const Slice& slice : slices) Keep(WriteRows(slice, tensor.cols, row, rows));
    }
    return {};
  }

  // Fills piece_ on the owner, from this element on.
  Status CopyOut(int owner, int stage, const Tensor& tensor, int64_t element) {
    const Status copied = args_.copy_out(owner, stage, tensor.weight + element * 4,
                                         static_cast<int64_t>(piece_.size()) * 4, piece_.data());
    // So that nobody takes what is there instead for this tensor.
    if (!copied.ok()) std::fill(piece_.begin(), piece_.end(), NAN);
    PP_RETURN_IF_ERROR(copied);
    return CheckFinite(tensor.name(), element, piece_).In(fmt::format("rank {}", owner));
  }

  // Fills piece_ on rank 0.
  Status Fetch(int owner, int stage, const Tensor& tensor, int64_t element) {
    const auto bytes = static_cast<int64_t>(piece_.size()) * 4;
    Exchange* exchange = args_.exchange;
    if (exchange == nullptr || exchange->rank() == owner)
      Keep(CopyOut(owner, stage, tensor, element));
    if (exchange == nullptr || owner == 0) return {};
    if (exchange->rank() == owner) return exchange->Send(0, piece_.data(), bytes);
    if (exchange->rank() != 0) return {};
    return exchange->Receive(owner, piece_.data(), bytes);
  }

  // Writes the part of a slice that is in these rows of the peer's tensor.
  Status WriteRows(const Slice& slice, int64_t cols, int64_t row, int64_t rows) {
    const size_t entry = entry_of_.at(slice.name);
    const int64_t first = slice.at / cols, col = slice.at % cols, whole = slice.shape.back();
    const int64_t begin = std::max(row, first), end = std::min(row + rows, first + slice.rows);
    const bool side_by_side = slice.cols == cols && slice.cols == whole;
    const int64_t step = side_by_side ? std::max<int64_t>(1, end - begin) : 1;
    for (int64_t r = begin; r < end; r += step)
      PP_RETURN_IF_ERROR(args_.folder->Write(entry, (slice.row + r - first) * whole + slice.col,
                                             piece_.data() + (r - row) * cols + col,
                                             side_by_side ? step * cols : slice.cols));
    return {};
  }

  const ExportArgs& args_;
  const Job& job_;
  const Topology topology_;
  const bool writes_;
  Status status_;
  std::map<std::string, size_t> entry_of_;
  std::vector<float> piece_;
};

}  // namespace

Status BeginExport(const Job& job, const SourceFiles& source, Dtype dtype, ModelFolder* folder) {
  SourceFiles files = source;
  if (files.empty() || files[0].name != kConfigName)
    files.insert(files.begin(), {kConfigName, ToConfigJson(job.model) + "\n"});
  files[0].bytes = ExportedConfig(files[0].bytes, job.model.family->architecture, dtype);
  return folder->Begin({.files = std::move(files), .dtype = dtype}, EntriesOf(job));
}

Status ExportModel(const ExportArgs& args) { return Exporter(args).Run(); }

}  // namespace pp
