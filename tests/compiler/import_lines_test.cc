// Errors of an import name the line: of whatever is wrong in a text, and of whatever a proof finds.
#include <catch2/catch.hpp>
#include <cctype>
#include <string>
#include <vector>

#include "compiler/compile.h"
#include "compiler/interop.h"
#include "compiler/lines.h"
#include "schema/base/split.h"
#include "schema/text.h"
#include "tests/must_compile.h"

namespace pp {
namespace {

// As `pipec import` does. Empty: there is none.
std::string ErrorOf(const std::string& text, bool csv = false) {
  Origin origin{"file"};
  const auto parse = [&] {
    return csv ? ParseTorchCsv(text, "file", &origin.name) : Parse(text, "file", &origin.name);
  };
  auto lists = parse();
  if (!lists.ok()) return lists.status().message();
  CompileOptions options;
  CopyAttributes(*lists, &options);
  options.passes.clear();
  const auto plan = CompileLists(std::move(*lists), origin, options);
  return plan.ok() ? "" : WithLines(plan.status(), *parse(), origin.name).message();
}

bool NamesAPlace(const std::string& error, const std::string& word) {
  for (size_t at = error.find(word); at != error.npos; at = error.find(word, at + 1))
    if (std::isdigit(static_cast<unsigned char>(error[at + word.size()])) != 0) return true;
  return false;
}

// An instruction as an error quotes it.
std::string OneSpace(const std::string& line) {
  std::string text;
  for (const char c : line)
    if (c != ' ' || (!text.empty() && text.back() != ' ')) text += c;
  return text;
}

std::string Joined(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

// What is wrong stands in the line that is marked with "# here".
TEST_CASE("what is wrong in a text is named by its own line") {
  const std::string head = "program x stages 2 microbatches 1\n";
  const std::string zero = "device 0 holds s0\n  FW s0 m0\n  BW s0 m0\n";
  const std::string one = "device 1 holds s1\n  FW s1 m0\n  BW s1 m0\n";
  const std::string model =
      R"(model {"model_type":"gpt2","n_layer":4,"n_embd":32,"n_head":4,"n_positions":64,"vocab_size":256})"
      "\n";
  const std::string job = model + "batch 1 sequence 64\n";
  const std::string both = "device 0 holds s0 s1\n  FW s0 m0\ndevice 1 holds s0 s1\n  FW s1 m0\n";
  for (const std::string& text : std::vector<std::string>{
           // The line that says it comes long before the end, at which it is noticed.
           head + "device 0 holds s0\n  FW s0 m0\n  FW s1 m0  # here\n  BW s1 m0\n  BW s0 m0\n",
           head + "device 0 holds s0\n  FW s0 m0\n  BW s0 m0\ndevice 1 holds s0  # here\n",
           "program x stages 2 microbatches 1  # here\n" + zero,
           head + "pipe d0  # here\n" + zero + one,
           head + "pipe d0 d7  # here\n" + zero + one,
           head + "pipe d0 d1\npipe d0 d1  # here\nmicro-batches on pipes 0\n" + zero + one,
           head + "pipe d0 d1\npipe d1 d0\nmicro-batches on pipes 2  # here\n" + both,
           head + "pipe d0 d1\npipe d1 d0\nmicro-batches on pipes 0 1  # here\n" + both,
           head + "pipe d1 d0\n" + "device 0 holds s0  # here\n" + one,
           head + "device 0 holds s0\n  FW s0 m0\n  SEND_act s0 m0 to d3  # here\n" + one,
           head + "device 0 holds s0\n  FW s0 m0\n  SEND_act s0 m0 to d0  # here\n" + one,
           head + job + "layers 1 1 2  # here\n" + zero + one,
           head + job + "layers 1 1  # here\n" + zero + one,
           head + model + "batch 2 sequence 65  # here\nlayers 2 2\n" + zero + one,
           head + job + "tp 3  # here\nlayers 2 2\n" + zero + one,
           head + "passes a b  # here\n" + zero + one,
           head + zero + one + "  FW s1 m0  # here\n",
           head + zero + "device 1 holds s1\n  FW s1 m0\n",
       }) {
    int line = 0, marked = 0;
    for (const std::string_view each : Split(text, '\n'))
      if (++line; each.ends_with("# here")) marked = line;
    const std::string error = ErrorOf(text);
    INFO(text << "\n" << error);
    CHECK(NamesAPlace(error, "line "));
    if (marked > 0) CHECK(error.starts_with("file: line " + std::to_string(marked) + ": "));
  }
}

// Every line of whole plans left out, written twice, exchanged with the next one, or with another
// stage, micro-batch or device: right all the same, or an error that names a line.
TEST_CASE("what a proof finds is named by a line") {
  int errors = 0;
  for (const char* scheme : {"1f1b", "chimera", "pipedream", "zb-h1"})
    for (const P2p p2p : {P2p::kAsync, P2p::kBlocking})
      for (const bool schedule : {false, true}) {
        const std::string printed =
            Print(MustCompile({.scheme = scheme,
                               .shape = {.devices = 2, .microbatches = 2, .stages_per_device = 0},
                               .p2p = p2p}));
        std::vector<std::string> lines;
        for (const std::string_view line : Split(printed, '\n')) {
          const bool is_compute = line.find("  FW") == 0 || line.find("  BW") == 0;
          if (!line.empty() && (!schedule || line[0] != ' ' || is_compute))
            lines.emplace_back(line);
        }
        for (size_t i = 1; i < lines.size(); ++i)
          for (const char* change : {"left out", "twice", "exchanged", "s", "m", "d"}) {
            std::vector<std::string> changed = lines;
            const std::string which = change;
            if (which == "left out") changed.erase(changed.begin() + static_cast<int>(i));
            if (which == "twice") changed.insert(changed.begin() + static_cast<int>(i), lines[i]);
            if (which == "exchanged" && i + 1 < lines.size()) std::swap(changed[i], changed[i + 1]);
            const size_t at = which.size() == 1 ? lines[i].find(" " + which) : lines[i].npos;
            if (at != lines[i].npos && at + 2 < lines[i].size())
              changed[i][at + 2] = changed[i][at + 2] == '0' ? '1' : '0';
            const std::string error = ErrorOf(Joined(changed));
            if (error.empty()) continue;
            ++errors;
            INFO(scheme << ": " << which << ": " << lines[i] << "\n" << error);
            CHECK(NamesAPlace(error, "line "));
            // A number only where two steps, one after the other, have what the text has not.
            for (const std::string& line : changed)
              CHECK(error.find("'" + OneSpace(line) + "' (instruction ") == error.npos);
          }
      }
  CHECK(errors > 500);
}

TEST_CASE("what a proof finds in a CSV is named by its row") {
  for (const std::string& text : std::vector<std::string>{
           "0F0,0B0\n1F0\n",
           "0F0,0B0\n1F0,1B0,1B0\n",
           "0F0,0B0\n2F0,2B0\n",
           "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1\n"
           "1RECV_F0,1RECV_F1,1F0,1F1,1B0,1B1,1SEND_B1,1SEND_B0\n",
           "0F0,3F0,3B0,0F1,3F1,3B1,0B0,0B1\n1F1,2F1,1F0,2F0,2B0,1B0,2B1,1B1\n",
       }) {
    const std::string error = ErrorOf(text, /*csv=*/true);
    INFO(error);
    CHECK(NamesAPlace(error, "row "));
    CHECK(error.find("(instruction ") == error.npos);
  }
}

}  // namespace
}  // namespace pp
