#include "runtime/run/export.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <vector>

#include "runtime/files/adapter_config.h"
#include "runtime/run/finite.h"
#include "schema/model/families.h"
#include "schema/model/layout.h"
#include "schema/topology.h"

namespace pp {
namespace {

constexpr int64_t kPieceFloats = 1 << 20;

// The tensors that are written.
bool IsWritten(Exported what, int stage, const Tensor& tensor) {
  return !IsTiedCopy(stage, tensor) && tensor.adapter == (what == Exported::kAdapter);
}

// Hugging Face's tensors, in model order, under their names in the model.
std::vector<ModelFolderEntry> EntriesOf(const Job& job, Exported what) {
  std::vector<ModelFolderEntry> entries;
  for (int stage = 0; stage < job.stages(); ++stage)
    for (const Tensor& tensor : LayoutStage(job, stage).tensors)
      if (IsWritten(what, stage, tensor))
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
    for (const ModelFolderEntry& entry : EntriesOf(job_, args.what))
      entry_of_.emplace(entry.name, entry_of_.size());
  }

  Status Run() {
    if (writes_) Keep(args_.folder->Start());
    for (int stage = 0; stage < job_.stages(); ++stage) {
      const StageLayout layout = LayoutStage(job_, stage);
      for (const Tensor& tensor : layout.tensors) {
        if (!IsWritten(args_.what, stage, tensor)) continue;
        merged_ = args_.what == Exported::kMerged ? WithAdapters(layout, tensor) : nullptr;
        for (int index = 0; index < (tensor.cut == Cut::kNone ? 1 : job_.tp); ++index)
          PP_RETURN_IF_ERROR(ExportTensor(stage, tensor, index));
      }
    }
    if (args_.exchange != nullptr) args_.exchange->SetComplete();
    return status_;
  }

 private:
  // This process's first error; the ranks continue, so that nobody waits for anyone.
  void Keep(const Status& status) {
    if (status_.ok()) status_ = status;
  }

  // The Linear of this matrix, if it has adapters.
  static const StageOperator* WithAdapters(const StageLayout& layout, const Tensor& tensor) {
    for (const StageOperator& placed : layout.operators)
      if (!placed.op.adapters.empty() && placed.parameters[0].weight == tensor.weight)
        return &placed;
    return nullptr;
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
    if (merged_ != nullptr) PP_RETURN_IF_ERROR(Merge(owner, stage, tensor, element / tensor.cols));
    return CheckFinite(tensor.name(), element, piece_).In(fmt::format("rank {}", owner));
  }

  // Adds scale B A to piece_, which begins at that row of the matrix. What a peer has of the matrix
  // and what it has of B and A go together.
  Status Merge(int owner, int stage, const Tensor& matrix, int64_t row) {
    const Operator& op = merged_->op;
    for (const Adapter& adapter : op.adapters) {
      const auto read = [&](size_t parameter, int64_t numbers, std::vector<float>* to) {
        to->resize(numbers);
        return args_.copy_out(owner, stage, merged_->parameters[parameter].weight, numbers * 4,
                              to->data());
      };
      PP_RETURN_IF_ERROR(read(adapter.a, adapter.rank * op.in, &a_));
      PP_RETURN_IF_ERROR(read(adapter.a + 1, adapter.out * adapter.rank, &b_));
      const int64_t rows = static_cast<int64_t>(piece_.size()) / matrix.cols;
      for (int64_t i = 0; i < rows; ++i)
        op.matrix == Matrix::kOutIn
            ? AddToOutput(op, adapter, row + i, piece_.data() + i * matrix.cols)
            : AddToInput(op, adapter, row + i, piece_.data() + i * matrix.cols);
    }
    return {};
  }

  // A row of a matrix [out, in].
  void AddToOutput(const Operator& op, const Adapter& adapter, int64_t output, float* row) const {
    const int64_t mine = output - adapter.first;
    if (mine < 0 || mine >= adapter.out) return;
    for (int64_t k = 0; k < adapter.rank; ++k) {
      const float factor = adapter.scale * b_[mine * adapter.rank + k];
      const float* a = a_.data() + k * op.in;
      for (int64_t i = 0; i < op.in; ++i) row[i] += factor * a[i];
    }
  }

  // A row of a matrix [in, out].
  void AddToInput(const Operator& op, const Adapter& adapter, int64_t input, float* row) const {
    for (int64_t o = 0; o < adapter.out; ++o) {
      float sum = 0;
      for (int64_t k = 0; k < adapter.rank; ++k)
        sum += b_[o * adapter.rank + k] * a_[k * op.in + input];
      row[adapter.first + o] += adapter.scale * sum;
    }
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
  const StageOperator* merged_ = nullptr;  // whose adapters are added; null: none
  std::vector<float> piece_, a_, b_;
};

}  // namespace

Status BeginExport(const ExportedAs& as, const Job& job, const SourceFiles& source,
                   ModelFolder* folder) {
  std::vector<ModelFolderEntry> entries = EntriesOf(job, as.what);
  if (as.what == Exported::kAdapter) {
    for (ModelFolderEntry& entry : entries) entry.name = kAdapterPrefix + entry.name;
    return folder->Begin({.files = {{kAdapterConfigName, AdapterConfig(job)}},
                          .dtype = as.dtype,
                          .file_bytes = INT64_MAX,  // peft reads one
                          .stem = kAdapterName},
                         entries);
  }
  SourceFiles files = source;
  if (files.empty() || files[0].name != kConfigName)
    files.insert(files.begin(), {kConfigName, ToConfigJson(job.model) + "\n"});
  files[0].bytes = ExportedConfig(files[0].bytes, job.model.family->architecture, as.dtype);
  return folder->Begin({.files = std::move(files), .dtype = as.dtype}, entries);
}

Status ExportModel(const ExportArgs& args) { return Exporter(args).Run(); }

}  // namespace pp
