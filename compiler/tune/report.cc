#include "compiler/tune/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <string_view>

#include "compiler/tune/page_html.h"
#include "compiler/tune/pick.h"
#include "schema/base/units.h"

namespace pp {
namespace {

std::string NameOf(const Candidate& candidate) {
  const CompileOptions& c = candidate.compile;
  const bool plain = c.shape.devices == 1 && (c.scheme == "1f1b" || c.scheme == "interleaved");
  std::string name = plain ? "no pipeline" : c.scheme;
  if (c.shape.stages_per_device > 0) name += fmt::format(" V={}", c.shape.stages_per_device);
  return name;
}

// What recomputes.
std::string WayOf(const CompileOptions& c) {
  return !c.fit.limit.values.empty() ? "fit-memory" : c.passes.empty() ? "-" : c.passes;
}

// What else a plan has: "zero sp keep dp-pp".
std::string ExtrasOf(const CompileOptions& c) {
  std::string extras;
  for (const auto& [is, name] : {std::pair(c.zero > 0, "zero"),
                                 {c.job.sequence_parallel, "sp"},
                                 {!c.job.keep.empty(), "keep"},
                                 {c.rank_order == RankOrder::kTpDpPp, "tp,dp,pp"}})
    if (is) extras += (extras.empty() ? "" : " ") + std::string(name);
  return extras.empty() ? "-" : extras;
}

std::string Percent(double share) { return fmt::format("{:.1f} %", share * 100); }

}  // namespace

double TuneReport::Tokens() const {
  return static_cast<double>(options_.batch) * static_cast<double>(options_.job.sequence_length);
}

double TuneReport::Utilization(double seconds) const {
  if (!options_.profiles.empty()) return 0;
  const double peak = options_.machine.flops[static_cast<int>(options_.job.dtype)];
  return tuned_.model_operations / seconds / options_.devices / peak;
}

bool TuneReport::IsAsFast(const Candidate& candidate) const {
  return candidate.level == Level::kPlan && candidate.fits &&
         candidate.seconds <= tuned_.best.front().seconds * (1 + ModelError(options_));
}

std::string TuneReport::Layout(const Candidate& candidate) const {
  const CompileOptions& c = candidate.compile;
  std::string text = fmt::format("{} with pp {}, tp {}, dp {}, size {}", NameOf(candidate),
                                 c.shape.devices, c.job.tp, c.replicas, c.job.micro_batch_size);
  if (c.zero > 0) text += ", zero 1";
  if (c.job.sequence_parallel) text += ", sp";
  if (!c.job.keep.empty()) text += ", keep " + TextOf(c.job.keep, kKeepNames);
  if (c.rank_order == RankOrder::kTpDpPp) text += ", ranks tp,dp,pp";
  if (WayOf(c) != "-") text += ", " + WayOf(c);
  return text;
}

std::string TuneReport::Row(const Candidate& c) const {
  return fmt::format(
      "{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<16} {:<12} {:>9.4g} {:>10.4g} {:>6.1f} {:>6} "
      "{:>9}\n",
      NameOf(c), c.compile.shape.devices, c.compile.job.tp, c.compile.replicas,
      c.compile.job.micro_batch_size, c.compile.shape.microbatches, WayOf(c.compile),
      ExtrasOf(c.compile), c.seconds, Tokens() / c.seconds, c.bubble * 100,
      !options_.profiles.empty() ? "-" : fmt::format("{:.1f}", Utilization(c.seconds) * 100),
      BytesText(c.bytes));
}

std::string TuneReport::Command(const Candidate& candidate) const {
  const CompileOptions& c = candidate.compile;
  std::string line = fmt::format(
      "pipec compile --scheme {} --devices {} --microbatches {} --model {} --layers-per-stage {} "
      "--micro-batch-size {}",
      c.scheme, c.shape.devices, c.shape.microbatches, words_.model,
      c.balance_layers ? "auto" : fmt::format("{}", fmt::join(c.job.layers_per_stage, ",")),
      c.job.micro_batch_size);
  const auto add = [&](bool is, const std::string& text) {
    if (is) line += " " + text;
  };
  add(c.shape.stages_per_device > 0,
      fmt::format("--stages-per-device {}", c.shape.stages_per_device));
  add(c.job.tp > 1, fmt::format("--tp {}", c.job.tp));
  add(c.replicas > 1, fmt::format("--dp {}", c.replicas));
  add(c.zero > 0, "--zero 1");
  add(c.rank_order != RankOrder::kTpPpDp,
      fmt::format("--rank-order {}", kRankOrderNames[static_cast<size_t>(c.rank_order)]));
  add(!c.passes.empty(), "--passes " + c.passes);
  if (!c.fit.limit.values.empty())
    add(true, fmt::format("--memory-limit {:.0f}B", c.fit.limit.values.front()));
  add(c.fit.search_seconds > 0, fmt::format("--search-seconds {:g}", c.fit.search_seconds));
  add(c.job.sequence_length != c.job.model.max_positions,
      fmt::format("--seq-length {}", c.job.sequence_length));
  add(c.job.sequence_parallel, "--sequence-parallel");
  add(!c.job.keep.empty(), "--keep " + TextOf(c.job.keep, kKeepNames));
  add(c.job.lora.given(), "--lora " + TextOf(c.job.lora));
  add(c.job.documents, "--documents");
  add(c.job.document_length > 0, fmt::format("--document-length {}", c.job.document_length));
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
  const Candidate& fastest = tuned_.best.front();
  std::string out;
  if (const auto as_fast = std::count_if(tuned_.best.begin(), tuned_.best.end(),
                                         [&](const auto& c) { return IsAsFast(c); });
      as_fast > 1)
    out += fmt::format(
        "{} of these are as fast, but for the model's error of {:g} %: the simplest stands first\n",
        as_fast, ModelError(options_) * 100);
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
  if (tuned_.large.empty()) return out;
  const Candidate& large =
      *std::min_element(tuned_.large.begin(), tuned_.large.end(),
                        [](const auto& x, const auto& y) { return x.seconds < y.seconds; });
  out += fmt::format("{} do not fit", tuned_.large.size());
  if (large.seconds < fastest.seconds)
    out += fmt::format("; {} could take {:.4g} s, but needs {} or more ({})", Layout(large),
                       large.seconds, BytesText(large.bytes), large.lacks);
  if (tuned_.unfitted > 0)
    out += fmt::format("; {} that could be faster with --memory-limit were not tried",
                       tuned_.unfitted);
  return out + "\n";
}

std::string TuneReport::Made() const {
  const Candidate& pick = tuned_.best[tuned_.pick];
  const Parts& parts = pick.parts;
  const auto share = [&](double part) { return Percent(part / pick.seconds); };
  std::string out = fmt::format(
      "a step of the first: compute {}, bubble {}, messages {}, reductions {}, optimizer {}\n",
      share(parts.compute), share(parts.bubble), share(parts.messages), share(parts.reductions),
      share(parts.optimizer));
  if (options_.tokens > 0)
    out += fmt::format("{:g} tokens take {:.3g} days\n", options_.tokens,
                       options_.tokens / Tokens() * pick.seconds / 86400);
  return out;
}

std::string TuneReport::Limits() const {
  std::string out;
  for (const Dependence& d : tuned_.dependences) {
    const auto rate = [&](double factor) {
      return ToText(Quantity{std::round(d.value * factor / 1e8) * 1e8, Dimension::kBandwidth});
    };
    const char* link = d.price == "between" ? "a device between nodes" : "a device inside a node";
    out += fmt::format("links of {}, {} by the description: ", link, rate(1));
    if (!d.lower && !d.higher) {
      out += "the first stays at a sixteenth and at sixteen times that\n";
      continue;
    }
    const auto change = [&](const Dependence::Change& c) {
      return fmt::format("with {} {} saves {}", rate(c.factor), Layout(c.pick), Percent(c.saves));
    };
    if (d.lower) out += change(*d.lower);
    if (d.lower && d.higher) out += "; ";
    if (d.higher) out += change(*d.higher);
    out += "\n";
  }
  return out + fmt::format("not considered: {}\n", kNotConsidered);
}

std::string TuneReport::Beside() const {
  if (words_.beside.empty()) return "";
  const Candidate& pick = tuned_.best[tuned_.pick];
  if (!tuned_.beside) return fmt::format("{}: nothing of it fits\n", Shown(words_.beside));
  const Candidate& theirs = *tuned_.beside;
  std::string out = fmt::format("{}: {} at best, {:.4g} s a step, {}\n", Shown(words_.beside),
                                Layout(theirs), theirs.seconds, BytesText(theirs.bytes));
  const auto more = [&](double theirs_takes, double ours) {
    return std::round((theirs_takes - ours) * 1e4) / 10 + 0.0;  // no -0
  };
  return out + fmt::format(
                   "the first saves {} of it: compute {:.1f} ms, bubble {:.1f}, messages {:.1f}, "
                   "reductions {:.1f}, optimizer {:.1f}\n",
                   Percent(1 - pick.seconds / theirs.seconds),
                   more(theirs.parts.compute, pick.parts.compute),
                   more(theirs.parts.bubble, pick.parts.bubble),
                   more(theirs.parts.messages, pick.parts.messages),
                   more(theirs.parts.reductions, pick.parts.reductions),
                   more(theirs.parts.optimizer, pick.parts.optimizer));
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
      "{:<16} {:>3} {:>3} {:>4} {:>4} {:>5}  {:<16} {:<12} {:>9} {:>10} {:>6} {:>6} {:>9}\n",
      "scheme", "pp", "tp", "dp", "size", "M", "recomputes", "with", "s/step", "tokens/s", "idle %",
      "MFU %", "peak");
  for (const Candidate& candidate : InOrder()) out += Row(candidate);
  const std::string run =
      fmt::format("-n {} piperun {} --data FILE{}\n", options_.devices, words_.plan,
                  options_.job.backend == DeviceKind::kCuda ? " --backend cuda" : "");
  return out + Unmeasured() + Losers() + Made() + Beside() + Limits() + "\n" +
         Command(tuned_.best[tuned_.pick]) + "\nmpiexec " + run + "srun --mpi=pmi2 " + run;
}

std::vector<Candidate> TuneReport::InOrder() const {
  std::vector<Candidate> order = tuned_.best;
  const auto end = std::stable_partition(order.begin(), order.end(),
                                         [&](const Candidate& c) { return IsAsFast(c); });
  std::stable_sort(order.begin(), end, [](const Candidate& a, const Candidate& b) {
    return ComplexityOf(a) < ComplexityOf(b);
  });
  return order;
}

std::string TuneReport::WhyNot(const Candidate& c) const {
  if (!c.fits) return c.lacks;
  const double more = c.seconds / tuned_.best.front().seconds - 1;
  if (IsAsFast(c))
    return fmt::format("{} slower than the fastest, or not the simplest", Percent(more));
  if (c.level == Level::kPlan) return fmt::format("{} slower than the fastest", Percent(more));
  return fmt::format("at least {} slower than the fastest, by {}", Percent(more),
                     c.level == Level::kWork ? "its work" : "its schedule");
}

nlohmann::json TuneReport::JsonOf(const Candidate& c) const {
  nlohmann::json json{{"scheme", c.compile.scheme},
                      {"stages_per_device", c.compile.shape.stages_per_device},
                      {"pp", c.compile.shape.devices},
                      {"tp", c.compile.job.tp},
                      {"dp", c.compile.replicas},
                      {"micro_batch_size", c.compile.job.micro_batch_size},
                      {"microbatches", c.compile.shape.microbatches},
                      {"zero", c.compile.zero},
                      {"rank_order", kRankOrderNames[static_cast<size_t>(c.compile.rank_order)]},
                      {"sequence_parallel", c.compile.job.sequence_parallel},
                      {"keep", TextOf(c.compile.job.keep, kKeepNames)},
                      {"passes", WayOf(c.compile) == "-" ? "" : WayOf(c.compile)},
                      {"fits", c.fits},
                      {"command", Command(c)}};
  const bool exact = c.level == Level::kPlan;
  json[exact ? "step_seconds" : "step_seconds_at_least"] = c.seconds;
  json[exact ? "peak_bytes" : "peak_bytes_at_least"] = static_cast<int64_t>(c.bytes);
  json["parts"] = {{"compute", c.parts.compute},
                   {"bubble", c.parts.bubble},
                   {"messages", c.parts.messages},
                   {"reductions", c.parts.reductions},
                   {"optimizer", c.parts.optimizer}};
  if (exact) {
    json["tokens_per_second"] = Tokens() / c.seconds;
    json["bubble"] = c.bubble;
    if (options_.profiles.empty()) json["mfu"] = Utilization(c.seconds);
  }
  return json;
}

std::string TuneReport::Json() const {
  const Candidate& pick = tuned_.best[tuned_.pick];
  nlohmann::json out{{"search_seconds", tuned_.seconds},
                     {"devices", options_.devices},
                     {"machine", options_.machine.name},
                     {"memory", options_.memory},
                     {"batch", options_.batch},
                     {"sequence_length", options_.job.sequence_length},
                     {"tokens", Tokens()},
                     {"mfu_counts", "6N + 12LCT"},
                     {"model_error", ModelError(options_)},
                     {"not_considered", kNotConsidered}};
  if (options_.tokens > 0) out["training_days"] = options_.tokens / Tokens() * pick.seconds / 86400;
  if (tuned_.beside) out["beside"] = JsonOf(*tuned_.beside);
  out["depends_on"] = nlohmann::json::array();
  for (const Dependence& d : tuned_.dependences) {
    nlohmann::json one{{"price", d.price}, {"bytes_per_second", d.value}};
    for (const auto& [name, change] : {std::pair("lower", &d.lower), {"higher", &d.higher}})
      if (*change)
        one[name] = {{"bytes_per_second", d.value * (*change)->factor},
                     {"saves", (*change)->saves},
                     {"best", JsonOf((*change)->pick)}};
    out["depends_on"].push_back(one);
  }
  bool first = true;
  const std::vector<Candidate> order = InOrder();
  for (const auto* list : {&order, &tuned_.rest, &tuned_.large})
    for (const Candidate& candidate : *list) {
      nlohmann::json one = JsonOf(candidate);
      if (!std::exchange(first, false)) one["why"] = WhyNot(candidate);
      one["as_fast"] = IsAsFast(candidate);
      out["candidates"].push_back(std::move(one));
    }
  out["best"] = out["candidates"].front();
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
