#include "compiler/tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>

#include "compiler/tune/page_html.h"
#include "schema/base/units.h"

namespace pp {
namespace {

std::string NameOf(const Candidate& candidate) {
  const CompileOptions& c = candidate.compile;
  const bool plain = c.shape.devices == 1 && c.scheme == "1f1b";
  std::string name = plain ? "no pipeline" : c.scheme;
  if (c.shape.stages_per_device > 0) name += fmt::format(" V={}", c.shape.stages_per_device);
  return name;
}

}  // namespace

double TuneReport::Tokens() const {
  return static_cast<double>(options_.batch) * static_cast<double>(options_.job.sequence_length);
}

double TuneReport::Utilization(double seconds) const {
  if (!options_.profiles.empty()) return 0;
  const double peak = options_.machine.flops[static_cast<int>(options_.job.dtype)];
  return tuned_.model_operations / seconds / options_.devices / peak;
}

std::string TuneReport::Row(const Candidate& c) const {
  return fmt::format(
      "{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<17} {:>9.4g} {:>10.4g} {:>6.1f} {:>6} {:>9}\n",
      NameOf(c), c.compile.shape.devices, c.compile.job.tp, c.compile.replicas,
      c.compile.job.micro_batch_size, c.compile.shape.microbatches,
      c.compile.passes.empty() ? "-" : c.compile.passes, c.seconds, Tokens() / c.seconds,
      c.bubble * 100,
      !options_.profiles.empty() ? "-" : fmt::format("{:.1f}", Utilization(c.seconds) * 100),
      BytesText(c.bytes));
}

std::string TuneReport::Command(const Candidate& candidate) const {
  const CompileOptions& c = candidate.compile;
  std::string line = fmt::format(
      "pipec compile --scheme {} --devices {} --microbatches {} --model {} --layers-per-stage auto "
      "--micro-batch-size {}",
      c.scheme, c.shape.devices, c.shape.microbatches, words_.model, c.job.micro_batch_size);
  const auto add = [&](bool is, const std::string& text) {
    if (is) line += " " + text;
  };
  add(c.shape.stages_per_device > 0,
      fmt::format("--stages-per-device {}", c.shape.stages_per_device));
  add(c.job.tp > 1, fmt::format("--tp {}", c.job.tp));
  add(c.replicas > 1, fmt::format("--dp {}", c.replicas));
  add(c.zero > 0, "--zero 1");
  add(!c.passes.empty(), "--passes " + c.passes);
  add(c.job.sequence_length != c.job.model.max_positions,
      fmt::format("--seq-length {}", c.job.sequence_length));
  add(c.job.sequence_parallel, "--sequence-parallel");
  add(!c.job.keep.empty(), "--keep " + TextOf(c.job.keep, kKeepNames));
  add(c.job.lora.given(), "--lora " + TextOf(c.job.lora));
  add(c.job.dtype != Dtype::kFp32, fmt::format("--dtype {}", pp::NameOf(c.job.dtype)));
  add(c.job.backend != DeviceKind::kCpu, fmt::format("--backend {}", pp::NameOf(c.job.backend)));
  add(!words_.prices.empty(), words_.prices);
  return line + " -o " + words_.plan;
}

std::string TuneReport::Unmeasured() const {
  std::set<int> measured;
  for (const Profile& profile : options_.profiles)
    if (profile.job.sequence_length == options_.job.sequence_length)
      measured.insert(profile.job.micro_batch_size);
  const auto is_measured = [&](const Candidate& c) {
    return measured.count(c.compile.job.micro_batch_size) > 0;
  };
  const auto& best = tuned_.best;
  if (options_.profiles.empty() || std::all_of(best.begin(), best.end(), is_measured)) return "";
  return fmt::format(
      "measured are micro-batches of {}; other sizes follow from their work (--costs takes several "
      "profiles, separated by commas)\n",
      measured.empty() ? "other sequences" : fmt::format("{}", fmt::join(measured, ", ")));
}

std::string TuneReport::Losers() const {
  const Candidate& best = tuned_.best.front();
  std::string out;
  if (!tuned_.rest.empty()) {
    const auto at = [&](Level level) {
      return std::count_if(tuned_.rest.begin(), tuned_.rest.end(),
                           [&](const auto& c) { return c.level == level; });
    };
    out += fmt::format(
        "{} more take at least {:.4g} s: {} by a bound on their work, {} on their schedule, {} "
        "compiled\n",
        tuned_.rest.size(), tuned_.rest.front().seconds, at(Level::kWork), at(Level::kSchedule),
        at(Level::kPlan));
  }
  // The one that would be fastest, if there were memory.
  if (!tuned_.large.empty()) {
    const Candidate& fastest =
        *std::min_element(tuned_.large.begin(), tuned_.large.end(),
                          [](const auto& x, const auto& y) { return x.seconds < y.seconds; });
    out += fmt::format("{} do not fit", tuned_.large.size());
    if (fastest.seconds < best.seconds)
      out += fmt::format(
          "; {} with pp {}, tp {}, dp {}, size {} could take {:.4g} s, but needs {} or more ({})",
          NameOf(fastest), fastest.compile.shape.devices, fastest.compile.job.tp,
          fastest.compile.replicas, fastest.compile.job.micro_batch_size, fastest.seconds,
          BytesText(fastest.bytes), fastest.lacks);
    out += "\n";
  }
  if (tuned_.best.size() > 1)
    out += fmt::format("the next best is {:.2g} % slower\n",
                       (tuned_.best[1].seconds / best.seconds - 1) * 100);
  if (tuned_.drift) {
    const auto up_to = [](double factor) {
      return factor >= kMostDrift ? fmt::format("{:g} times or more", factor)
                                  : fmt::format("{:.3g} times", factor);
    };
    out += fmt::format("it stays the fastest while messages take up to {} as long, reductions {}\n",
                       up_to(tuned_.drift->messages), up_to(tuned_.drift->reductions));
  }
  return out;
}

std::string TuneReport::Text() const {
  std::string out = fmt::format(
      "{} device{} of {}, {} each; {} sequences of {} tokens a step, {}, backend {}{}\n",
      options_.devices, options_.devices == 1 ? "" : "s", Shown(options_.machine.name),
      BytesText(options_.memory), options_.batch, options_.job.sequence_length,
      pp::NameOf(options_.job.dtype), pp::NameOf(options_.job.backend),
      !options_.profiles.empty()  ? ""
      : options_.job.lora.given() ? "; MFU: 4N + 12LCT, and 6 for each element of adapters"
                                  : "; MFU: 6N + 12LCT");
  out += fmt::format(
      "{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<17} {:>9} {:>10} {:>6} {:>6} {:>9}\n", "scheme",
      "pp", "tp", "dp", "size", "M", "recomputes", "s/step", "tokens/s", "idle %", "MFU %", "peak");
  for (const Candidate& candidate : tuned_.best) out += Row(candidate);
  const std::string run =
      fmt::format("-n {} piperun {} --data FILE{}\n", options_.devices, words_.plan,
                  options_.job.backend == DeviceKind::kCuda ? " --backend cuda" : "");
  return out + Unmeasured() + Losers() + "\n" + Command(tuned_.best.front()) + "\nmpiexec " + run +
         "srun --mpi=pmi2 " + run;
}

std::string TuneReport::Json() const {
  const auto row = [&](const Candidate& c) {
    nlohmann::json json{{"scheme", c.compile.scheme},
                        {"stages_per_device", c.compile.shape.stages_per_device},
                        {"pp", c.compile.shape.devices},
                        {"tp", c.compile.job.tp},
                        {"dp", c.compile.replicas},
                        {"micro_batch_size", c.compile.job.micro_batch_size},
                        {"microbatches", c.compile.shape.microbatches},
                        {"zero", c.compile.zero},
                        {"passes", c.compile.passes},
                        {"fits", c.fits},
                        {"command", Command(c)}};
    const bool exact = c.level == Level::kPlan;
    json[exact ? "step_seconds" : "step_seconds_at_least"] = c.seconds;
    json[exact ? "peak_bytes" : "peak_bytes_at_least"] = static_cast<int64_t>(c.bytes);
    if (exact) {
      json["tokens_per_second"] = Tokens() / c.seconds;
      json["bubble"] = c.bubble;
      if (options_.profiles.empty()) json["mfu"] = Utilization(c.seconds);
    }
    if (!c.fits) json["why"] = c.lacks;
    return json;
  };
  nlohmann::json out{{"search_seconds", tuned_.seconds},
                     {"devices", options_.devices},
                     {"machine", options_.machine.name},
                     {"memory", options_.memory},
                     {"batch", options_.batch},
                     {"sequence_length", options_.job.sequence_length},
                     {"tokens", Tokens()},
                     {"best", row(tuned_.best.front())}};
  if (tuned_.drift)
    out["stays_fastest_up_to"] = {{"messages", tuned_.drift->messages},
                                  {"reductions", tuned_.drift->reductions}};
  for (const auto* list : {&tuned_.best, &tuned_.rest, &tuned_.large})
    for (const Candidate& candidate : *list) out["candidates"].push_back(row(candidate));
  return out.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

std::string TuneReport::Page() const {
  // JSON that is safe inside <script>: no text in it can end the element.
  std::string data;
  for (const char c : Json()) c == '<' ? data += "\\u003c" : data += c;
  const std::string_view page(kTunePageHtml + 1);  // without the line break after its R"page(
  const std::string_view mark = "{{data}}";
  const size_t at = page.find(mark);
  PP_CHECK(at != page.npos);
  return fmt::format("{}{}{}", page.substr(0, at), data, page.substr(at + mark.size()));
}

}  // namespace pp
