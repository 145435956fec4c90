#include "runtime/run/run_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include "schema/base/units.h"
#include "schema/model/families.h"
#include "schema/model/layout.h"

namespace pp {
namespace {

std::string Duration(double seconds) {
  const auto all = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = all / 3600, minutes = all / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, all % 60)
                   : fmt::format("{}:{:02}", minutes, all % 60);
}

// A skipped step's norm is not finite.
bool HasNorm(const StepReport& report) {
  return report.grad_norm && std::isfinite(*report.grad_norm);
}

// The text as a terminal may show it: lines and tabs stay, other control characters and what is not
// UTF-8 are written out.
std::string Readable(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    size_t bytes = 1;  // of a character
    const bool begins = (text[0] & 0xc0) == 0xc0;
    while (begins && bytes < std::min<size_t>(text.size(), 4) && (text[bytes] & 0xc0) == 0x80)
      ++bytes;
    const std::string_view one = text.substr(0, bytes);
    shown += one == "\n" || one == "\t" ? std::string(one) : Shown(one);
    text.remove_prefix(bytes);
  }
  return shown;
}

}  // namespace

std::string HeaderText(const Program& program) {
  const Job& job = *program.job;
  Job whole = job;  // without peers
  whole.tp = 1;
  whole.sequence_parallel = false;
  int64_t parameters = 0, trained = 0, most = 0;
  for (int s = 0; s < program.stages; ++s) {
    const StageLayout layout = LayoutStage(whole, s);
    parameters += layout.parameters;
    trained += layout.trained_parameters;
  }
  for (const DeviceList& list : program.lists) most = std::max(most, list.arena_bytes);
  const int64_t copies = int64_t{program.replicas} * job.tp;
  std::string text = fmt::format(
      "{} with {} parameters{}: {} on {} device{}, {} micro-batch{} of {} tokens",
      job.model.family->model_type, parameters,
      trained < parameters ? fmt::format(", of which {} are trained", trained) : "", program.scheme,
      program.devices, program.devices == 1 ? "" : "s", program.microbatches,
      program.microbatches == 1 ? "" : "es",
      job.shapes.given() ? TextOf(job.shapes)
                         : fmt::format("{} x {}", job.micro_batch_size, job.sequence_length));
  if (program.replicas > 1) text += fmt::format(", {} replicas", program.replicas);
  if (job.tp > 1) text += fmt::format(", {} tensor-parallel peers", job.tp);
  const int64_t ranks = program.devices * copies;
  const int64_t tokens =
      program.replicas *
      (job.shapes.given() ? job.shapes.tokens() : program.microbatches * job.tokens());
  if (program.ramp.given()) text += fmt::format(", by steps {}", TextOf(program.ramp));
  return text + fmt::format("; {} rank{}, {}{} tokens a step, at most {} a rank\n", ranks,
                            ranks == 1 ? "" : "s", program.ramp.given() ? "up to " : "", tokens,
                            BytesText(static_cast<double>(most)));
}

std::string ToJson(const StepReport& report) {
  return fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":{:.9g},"step_seconds":{:.6g},)"
      R"("tokens_per_second":{:.6g},"peak_bytes":[{}]{}{}}})"
      "\n",
      report.step, report.empty ? "null" : fmt::format("{:.9g}", report.loss),
      HasNorm(report) ? fmt::format("{:.9g}", *report.grad_norm) : std::string("null"),
      report.learning_rate, report.seconds, report.tokens_per_second,
      fmt::join(report.peak_bytes, ","),
      report.loss_scale
          ? fmt::format(R"(,"loss_scale":{:.9g},"skipped":{})", *report.loss_scale, report.skipped)
          : "",
      report.val_loss ? fmt::format(R"(,"val_loss":{:.9g})", *report.val_loss) : "");
}

std::string ToLine(const StepReport& report, double seconds) {
  const double left = seconds * static_cast<double>(report.steps - report.step);
  return fmt::format(
      "step {}/{}  {}  {}{}{}lr {:.3g}  {:.0f} tok/s  {} left\n", report.step, report.steps,
      report.empty ? "no targets, no update" : fmt::format("loss {:.4f}", report.loss),
      report.val_loss ? fmt::format("val {:.4f}  ", *report.val_loss) : "",
      HasNorm(report) ? fmt::format("norm {:.2f}  ", *report.grad_norm) : "",
      report.loss_scale
          ? fmt::format("scale {:.9g}{}  ", *report.loss_scale, report.skipped ? ", skipped" : "")
          : "",
      report.learning_rate, report.tokens_per_second, Duration(left));
}

std::string SummaryText(const TrainReport& report) {
  TimeSpent all;
  for (const TimeSpent& rank : report.time) all += rank;
  std::string text = fmt::format(
      "kernels {:.1f} %  waiting {:.1f} %  runtime {:.2f} us per instruction ({:.2f} %){}\n",
      100 * all.kernels / all.total, 100 * all.waiting / all.total, 1e6 * all.OwnPerInstruction(),
      100 * all.own / all.total,
      all.starting > 0 ? fmt::format("  starting kernels {:.1f} %", 100 * all.starting / all.total)
                       : "");
  // From the start of an instruction to its end; hidden: nobody was waiting for it.
  for (size_t k = 0; k < kCommNames.size(); ++k) {
    const CommTime& time = all.communication.kinds[k];
    if (time.total > 0)
      text += fmt::format("{:<9} {:.3f} s per rank, {:.1f} % hidden behind compute\n",
                          kCommNames[k], time.total / static_cast<double>(report.time.size()),
                          100 * std::max(0.0, 1 - time.exposed / time.total));
  }
  return text;
}

std::string SampleText(const TrainReport& report) {
  std::string text, prompt;
  for (size_t i = 0; i < report.sample.size(); ++i) {
    if (static_cast<int64_t>(i) == report.prompt)
      prompt = std::exchange(text, "") + (report.text ? "" : " ");
    const int32_t token = report.sample[i];
    if (!report.text)
      text += fmt::format("{}{}", i == 0 ? "" : " ", token);
    else
      text += token < 256 ? std::string(1, static_cast<char>(token)) : fmt::format("<{}>", token);
  }
  const bool any = static_cast<int64_t>(report.sample.size()) > report.prompt;
  return any ? fmt::format("sample: {}|{}\n", Readable(prompt), Readable(text)) : "";
}

}  // namespace pp
