#include "schema/model/job.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>

#include "schema/base/split.h"
#include "schema/model/families.h"

namespace pp {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 26;
constexpr double kMaxBytes = 1e16;  // of one copy of the model with one micro-batch

// Roughly the bytes of all values of a micro-batch, the weights, their gradients and moments
// together; as a double, which does not overflow.
double EstimateBytes(const Job& job) {
  const ModelTable table = TableOf(job);
  double values = 0, weights = 0;
  const auto add = [&](const std::vector<Operator>& operators, double times) {
    for (const Operator& op : operators) {
      // An operator's output, the gradient with respect to it, and statistics.
      values += times * (2 * static_cast<double>(op.out) + op.heads + 4);
      for (const Parameter& parameter : op.parameters)
        weights +=
            times * static_cast<double>(parameter.rows) * static_cast<double>(parameter.cols);
    }
  };
  add(table.first, 1);
  add(table.layer, job.model.layers);
  add(table.last, 1);
  return 4 * (values * static_cast<double>(job.tokens()) + 4 * weights);
}

// A model keeps outputs that it has, and that tensor-parallel peers do not gather.
Status CheckKeep(const Job& job, const ModelTable& table) {
  std::vector<std::string_view> able;
  for (const std::string_view name : std::span(kKeepNames).subspan(1))
    if (std::any_of(table.layer.begin(), table.layer.end(),
                    [&](const Operator& op) { return NameOf(op.kind) == name; }))
      able.push_back(name);
  for (const OperatorKind kind : job.keep) {
    if (std::find(able.begin(), able.end(), NameOf(kind)) == able.end())
      return Status::Invalid(
          fmt::format("--keep: the model has no {} ({})", NameOf(kind), fmt::join(able, ", ")));
    if (kind != OperatorKind::kNorm || !job.sequence_parallel) continue;
    std::erase(able, NameOf(kind));
    return Status::Invalid(fmt::format(
        "--keep: norm, but with --sequence-parallel peers gather its output when they need it ({})",
        fmt::join(able, ", ")));
  }
  return {};
}

}  // namespace

ModelTable TableOf(const Job& job) {
  ModelTable table = TableOf(job.model);
  AddLora(job.lora, &table);
  return table;
}

Lora WithTargets(const Job& job) {
  Lora lora = job.lora;
  if (!lora.given() || !lora.targets.empty()) return lora;
  for (const std::string_view target : Split(job.model.family->lora_targets, ','))
    lora.targets.emplace_back(target);
  return lora;
}

Result<std::vector<int>> SplitLayers(int layers, int stages) {
  if (stages < 1 || layers % stages != 0) {
    return Status::Invalid(
        fmt::format("{} layers do not divide into {} stages ({} would; or --layers-per-stage)",
                    layers, stages, Divisors(layers)));
  }
  return std::vector<int>(stages, layers / stages);
}

Status CheckSplit(const std::vector<int>& split, int layers, int stages) {
  if (static_cast<int64_t>(split.size()) != stages) {
    return Status::Invalid(
        fmt::format("{} numbers of layers for {} stages (one per stage)", split.size(), stages));
  }
  int64_t sum = 0;
  for (size_t s = 0; s < split.size(); ++s) {
    if (split[s] < 0) {
      return Status::Invalid(fmt::format("{} layers for stage {} (0 or more)", split[s], s));
    }
    sum += split[s];
  }
  if (sum != layers) {
    return Status::Invalid(
        fmt::format("the stages have {} layers together (the model has {})", sum, layers));
  }
  return {};
}

int64_t Job::most_tokens() const {
  int64_t most = tokens();
  for (const Shapes::Run& run : shapes.runs) most = std::max(most, run.extent.all());
  return most;
}

Job Job::OfShape(int shape) const {
  Job one = *this;
  if (!shapes.given()) return one;
  one.micro_batch_size = shapes.runs[shape].extent.sequences;
  one.sequence_length = shapes.runs[shape].extent.tokens;
  one.document_length = std::min(one.document_length, one.sequence_length);
  one.shapes = {};
  return one;
}

namespace {

// Of each shape, and that the job's own numbers are those of the largest.
Status CheckEachShape(const Job& job) {
  const Extent largest = job.shapes.largest();
  if (job.micro_batch_size != largest.sequences || job.sequence_length != largest.tokens)
    return Status::Invalid(
        fmt::format("--shapes: '{}' beside micro-batches of {} x {} tokens (the "
                    "largest, {} x {})",
                    TextOf(job.shapes), job.micro_batch_size, job.sequence_length,
                    largest.sequences, largest.tokens));
  for (int shape = 0; shape < job.shapes.count(); ++shape)
    PP_RETURN_IF_ERROR(
        CheckJob(job.OfShape(shape))
            .In(fmt::format("--shapes: {}", TextOf(Shapes{{job.shapes.runs[shape]}}))));
  return {};
}

}  // namespace

Status CheckJob(const Job& job) {
  if (job.shapes.given()) PP_RETURN_IF_ERROR(CheckEachShape(job));
  PP_RETURN_IF_ERROR(CheckModelConfig(job.model, "model"));
  PP_RETURN_IF_ERROR(CheckAttributes(kJobAttributes, job));
  if (job.sequence_length > job.model.max_positions) {
    return Status::Invalid(fmt::format("--seq-length: is {} (1 to {}, the model's positions)",
                                       job.sequence_length, job.model.max_positions));
  }
  if (job.tokens() > kMaxTokens) {
    return Status::Invalid(fmt::format(
        "--micro-batch-size: {} sequences of {} tokens are {} in one micro-batch (at most {})",
        job.micro_batch_size, job.sequence_length, job.tokens(), kMaxTokens));
  }
  const ModelTable table = TableOf(job.model);
  const int most = TensorParallelLimit(table);
  if (job.tp < 1 || most % job.tp != 0) {
    return Status::Invalid(
        fmt::format("--tp: {} does not divide the model's heads and widths ({} would)", job.tp,
                    Divisors(most)));
  }
  if (job.sequence_parallel && job.tp == 1)
    return Status::Invalid("--sequence-parallel: there are no peers (with --tp 2 or more)");
  if (job.sequence_parallel && job.tokens() % job.tp != 0) {
    return Status::Invalid(fmt::format(
        "--sequence-parallel: {} sequences of {} tokens do not divide among {} peers (a multiple "
        "of {} tokens)",
        job.micro_batch_size, job.sequence_length, job.tp, job.tp));
  }
  if (job.document_length > 0 && !job.documents)
    return Status::Invalid(
        fmt::format("--document-length: {} (with --documents)", job.document_length));
  if (job.document_length > job.sequence_length)
    return Status::Invalid(
        fmt::format("--document-length: is {} (1 to {}, the tokens of a sequence)",
                    job.document_length, job.sequence_length));
  PP_RETURN_IF_ERROR(CheckKeep(job, table));
  PP_RETURN_IF_ERROR(CheckLora(job.lora, table));
  if (const double bytes = EstimateBytes(job); bytes > kMaxBytes) {
    return Status::Invalid(fmt::format(
        "model: its weights and one micro-batch take about {:.1e} bytes (at most {:.0e})", bytes,
        kMaxBytes));
  }
  return CheckSplit(job.layers_per_stage, job.model.layers, std::max(1, job.stages()))
      .In("--layers-per-stage");
}

}  // namespace pp
