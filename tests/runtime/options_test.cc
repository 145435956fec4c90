// The command line of piperun: what is said of words that it does not take, and that no option is
// forgotten where runs are compared.
#include "runtime/main/options.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/run/settings.h"
#include "schema/cli/words.h"

namespace pp {
namespace {

using Words = std::vector<std::string>;

struct CommandLine {
  CommandLine() { DescribeOptions(app, arguments); }
  CLI::App app;
  Arguments arguments;
};

TEST_CASE("every option is compared among ranks and with a checkpoint, or says why it is not") {
  // Names of files, which the ranks' contents are compared for; what each rank may have its own of;
  // what is compared where it is used (the plan, the data, --transport, and what decides kernels).
  const std::set<std::string> apart = {"PLAN",
                                       "--data",
                                       "--log",
                                       "--log-every",
                                       "--profile",
                                       "--threads",
                                       "--transport",
                                       "--net",
                                       "--stall-timeout",
                                       "--tune-gemms",
                                       "--help",
                                       "--version",
                                       "--man",
                                       "--completion",
                                       "--backend",
                                       "--gemms",
                                       "--weight-rounding",
                                       "--cuda-experiments"};
  std::set<std::string> compared;
  for (const Setting& setting : OptionSettings({})) {
    INFO(setting.name);
    CHECK(compared.insert(setting.name).second);
    CHECK(!apart.contains(setting.name));
  }
  const CommandLine line;
  for (const CLI::Option* option : line.app.get_options()) {
    const std::string name = option->get_name();
    INFO(name);
    CHECK((compared.erase(name) == 1 || apart.contains(name)));
  }
  CHECK(compared.empty());
  CHECK(DigestOptions({}).size() == OptionSettings({}).size());
  // Another value is another digest.
  TrainOptions other;
  other.optimizer.weight_decay = 0.2;
  int differ = 0;
  for (size_t i = 0; i < DigestOptions(other).size(); ++i)
    differ += DigestOptions(other)[i].digest != DigestOptions({})[i].digest;
  CHECK(differ == 1);
}

TEST_CASE("an option takes one value, once") {
  const CommandLine line;
  const auto error = [&](const Words& words) {
    return CheckWords(line.app, "piperun", words).message();
  };
  for (const CLI::Option* option : line.app.get_options()) {
    const std::string name = option->get_name();
    if (name == "PLAN" || option->get_expected_max() == 0) continue;
    INFO(name);
    const std::string type = option->get_type_name(), help = "; piperun --help)";
    CHECK(error({"x.plan", name, "1"}).empty());
    CHECK(error({"x.plan", name, "1", "2"}) ==
          name + ": '2' is a second value (one " + type + help);
    CHECK(error({"x.plan", name, "1", name + "=2"}) ==
          name + ": is given twice, as '1' and as '2' (once" + help);
    CHECK(error({"x.plan", name}) == name + ": without its value (" + type + help);
  }
}

}  // namespace
}  // namespace pp
