#include "runtime/run/step_reports.h"

#include <fmt/format.h>

#include <cmath>
#include <optional>

#include "runtime/model/optimizer.h"
#include "schema/topology.h"

namespace pp {

std::optional<double> ValidationLoss(const Program& program, const Inputs& inputs,
                                     const std::vector<ControlMessage>& reports) {
  if (!reports[0].evaluated) return std::nullopt;
  const Validation& validation = inputs.validation();
  double sum = 0;
  for (const int rank : TopologyOf(program).AllRanks()) sum += reports[rank].val_loss;
  return sum / static_cast<double>(validation.tokens);
}

Status CheckNumbers(const Program& program, const Inputs& inputs,
                    const std::vector<ControlMessage>& reports) {
  // Without the sign that a NaN may have.
  auto text = [](double number) { return std::isnan(number) ? std::abs(number) : number; };
  for (size_t rank = 0; rank < reports.size(); ++rank)
    if (const ControlMessage& report = reports[rank]; report.bad_micro >= 0)
      return Status::Failed(fmt::format("rank {}: step {}: loss of micro-batch {} is {} ({})", rank,
                                        inputs.steps_before() + report.step, report.bad_micro,
                                        text(report.bad_loss), report.text));
  if (const auto loss = ValidationLoss(program, inputs, reports); loss && !std::isfinite(*loss))
    return Status::Failed(fmt::format("step {}: the validation loss is {}",
                                      inputs.steps_before() + reports[0].step, text(*loss)));
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const ControlMessage& report = reports[rank];
    const int64_t step = inputs.steps_before() + report.step;
    if (report.scaling != reports[0].scaling)
      return Status::Failed(fmt::format("rank {}: step {}: loss scale {} (rank 0 has {})", rank,
                                        step, report.scaling.scale, reports[0].scaling.scale));
    if (std::isfinite(report.grad_norm)) continue;
    const bool scales = InfoOf(program.job->dtype).scales_loss;
    if (scales && report.scaling.scale >= 1) continue;  // the update was skipped
    return Status::Failed(fmt::format(
        "rank {}: step {}: the gradient's norm is {}{}", rank, step, text(report.grad_norm),
        scales ? fmt::format(" at a loss scale of {}, which cannot be halved further",
                             report.scaling.used)
               : ""));
  }
  return {};
}

Result<StepReport> Combine(const Program& program, const Inputs& inputs,
                           const std::vector<ControlMessage>& reports) {
  StepReport step;
  step.step = inputs.steps_before() + reports[0].step;
  const Result<int64_t> tokens = inputs.batches().Tokens(reports[0].step);
  PP_RETURN_IF_ERROR(tokens.status());
  for (const int rank : TopologyOf(program).AllRanks()) step.loss += reports[rank].loss;
  for (const ControlMessage& report : reports) step.peak_bytes.push_back(report.peak_bytes);
  step.empty = *tokens == 0;
  if (!step.empty) step.loss /= static_cast<double>(*tokens);
  step.val_loss = ValidationLoss(program, inputs, reports);
  step.steps = inputs.optimizer().steps;
  if (program.clip) step.grad_norm = reports[0].grad_norm;
  if (!step.empty && InfoOf(program.job->dtype).scales_loss) {
    step.loss_scale = reports[0].scaling.used;
    step.skipped = reports[0].scaling.finite == 0;
  }
  step.learning_rate = LearningRate(inputs.optimizer(), step.step);
  step.seconds = reports[0].seconds;
  step.tokens_per_second =
      static_cast<double>(inputs.batches().Positions(reports[0].step)) / step.seconds;
  return step;
}

}  // namespace pp
