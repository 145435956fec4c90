#include "tests/cycle.h"

#include <fmt/format.h>

#include <cstdio>
#include <regex>
#include <sstream>
#include <vector>

namespace pp {
namespace {

struct Step {
  int device = 0, index = 0;
  std::string op, value, peer;  // "SEND_act", " s0 m1", "d1"
  bool sent = false;
  std::string why;  // leads to the next one
};

std::vector<Step> StepsOf(const std::string& text) {
  // Where it stands in its list, or in the file that it was read from.
  static const std::regex kStep(
      R"(device (\d+) '([^']+)' \((?:instruction|line|row \d+, column) (\d+)\),?(?: which)? )"
      R"(([a-z ]+) (?=device|the first))");
  std::vector<Step> steps;
  for (std::sregex_iterator it(text.begin(), text.end(), kStep), end; it != end; ++it) {
    Step& step = steps.emplace_back(
        Step{.device = std::stoi((*it)[1]), .index = std::stoi((*it)[3]), .why = (*it)[4]});
    std::istringstream words((*it)[2]);
    words >> step.op;
    for (std::string word; words >> word;) {
      if (word == "sent") {
        step.sent = true;
      } else if (word == "to" || word == "from") {
        words >> step.peer;
      } else {
        step.value += " " + word;
      }
    }
  }
  return steps;
}

bool StartsWith(const std::string& text, const std::string& start) {
  return text.compare(0, start.size(), start) == 0;
}

// "act" of RECV_act.
std::string Kind(const std::string& op) { return op.substr(op.find('_') + 1); }

bool WaitsFor(const Step& a, const Step& b) {
  if (a.device != b.device) return false;
  if (a.index == b.index) return true;  // a blocking message
  const auto starts = a.value.find(Kind(b.op));
  if (a.op != "WAIT" || starts == std::string::npos || b.index >= a.index) return false;
  const bool message = StartsWith(b.op, "SEND") || StartsWith(b.op, "RECV");
  return !message || (a.sent == StartsWith(b.op, "SEND") && a.value == " " + Kind(b.op) + b.value);
}

// " s1 b0" of a reduction, each member of which has its own pipe.
std::string OfAllPipes(const std::string& value) { return value.substr(0, value.find(" p")); }

bool Matches(const Step& a, const Step& b) {
  if (a.device == b.device || OfAllPipes(a.value) != OfAllPipes(b.value) ||
      Kind(a.op) != Kind(b.op))
    return false;
  const bool message = StartsWith(a.op, "SEND") || StartsWith(a.op, "RECV");
  if (!message) return a.op == b.op;
  return StartsWith(a.op, "SEND") != StartsWith(b.op, "SEND") &&
         a.peer == fmt::format("d{}", b.device) && b.peer == fmt::format("d{}", a.device);
}

// A value comes from the stage before, or goes back to it.
bool Needs(const Step& a, const Step& b) {
  int from = 0, to = 0, from_micro = 0, to_micro = 0;
  if (std::sscanf(a.value.c_str(), " s%d m%d", &to, &to_micro) != 2 ||
      std::sscanf(b.value.c_str(), " s%d m%d", &from, &from_micro) != 2)
    return false;
  const bool forwards = a.op.ends_with("FW") && b.op.ends_with("FW");
  const bool backwards = StartsWith(a.op, "BW") && StartsWith(b.op, "BW");
  return a.device != b.device && from_micro == to_micro &&
         ((forwards && to == from + 1) || (backwards && from == to + 1));
}

bool Holds(const Step& a, const Step& b) {
  if (a.why == "waits for") return WaitsFor(a, b);
  if (a.why == "needs the value of") return Needs(a, b);
  if (a.why == "waits to be matched by") return Matches(a, b);
  if (a.why == "finds no room alongside" || a.why == "is grouped with")
    return a.device == b.device && a.index != b.index;
  if (a.why == "needs" || a.why == "comes after" || a.why == "is queued behind")
    return a.device == b.device && b.index < a.index;
  return false;
}

}  // namespace

std::string FaultOfCycle(const std::string& error) {
  const std::string closed = " the first";
  const size_t begin = error.rfind("deadlock:");
  const size_t end = error.find(closed);
  if (begin == std::string::npos || end == std::string::npos) return "no cycle in: " + error;
  const size_t cycle = error.find('(', begin) < error.find("; device", begin) ||
                               error.find("stops at", begin) == std::string::npos
                           ? begin
                           : error.find(" (device", begin);
  const std::string text = error.substr(cycle, end + closed.size() - cycle);
  const std::vector<Step> steps = StepsOf(text);
  size_t named = 0;
  for (size_t at = text.find("' ("); at != std::string::npos; at = text.find("' (", at + 1))
    ++named;
  if (steps.size() < 2 || steps.size() != named)
    return fmt::format("{} steps read of {} in: {}", steps.size(), named, text);
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step &a = steps[i], &b = steps[(i + 1) % steps.size()];
    if (!Holds(a, b))
      return fmt::format("device {} '{}{}' cannot be what '{}' device {} '{}{}'", a.device, a.op,
                         a.value, a.why, b.device, b.op, b.value);
  }
  return "";
}

}  // namespace pp
