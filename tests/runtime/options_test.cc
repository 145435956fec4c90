// The command line of piperun: what is said of words that it does not take, and that no option is
// forgotten where runs are compared.
#include "runtime/main/options.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/run/run_options_table.h"
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

// Its error, if the command line is wrong.
std::string ErrorOf(Words words) {
  CommandLine line;
  std::reverse(words.begin(), words.end());
  line.app.parse(words);
  return FinishOptions(&line.arguments).message();
}

TEST_CASE("what help says of an option holds") {
  const TrainOptions usual = CommandLine().arguments.train;
  ForEachOption([&]<typename Owner, typename T>(const RunOption<Owner, T>& row) {
    INFO(row.name);
    // The default that is shown is the one that is used.
    if (const std::string text = row.usual; !text.empty()) {
      T value{};
      REQUIRE(ReadValue(row.values, text, &value).ok());
      CHECK(TextOf(row.values, row.usual, value) ==
            TextOf(row.values, row.usual, OwnerIn<Owner>(usual).*row.member));
    }
    // A value that is none of its own is refused by its name, with what would be right.
    constexpr bool kText = std::is_same_v<T, std::string> || std::is_same_v<T, bool> ||
                           std::is_same_v<T, std::vector<std::string>>;
    if (kText && row.values.names.empty()) return;
    for (const char* wrong : {"x", "-1", "nan", "1e400"}) {
      Words words = {"x.plan", std::string(row.name) + "=" + wrong};
      if (row.needs != nullptr) words.push_back(std::string(row.needs) + "=1");
      const std::string error = ErrorOf(words);
      CHECK_THAT(error, Catch::StartsWith(std::string(row.name) + ": ") && Catch::Contains(wrong) &&
                            Catch::Contains("("));
    }
  });
}

TEST_CASE("ranks compare what an option says, and of paths alone whether it is given") {
  ForEachOption([&]<typename Owner, typename T>(const RunOption<Owner, T>& row) {
    if constexpr (std::is_same_v<T, std::string>) {
      if (row.decides == Decides::kOwn || !row.values.names.empty()) return;
      INFO(row.name);
      const bool differ =
          TextOf(row.values, row.usual, T("a")) != TextOf(row.values, row.usual, T("b"));
      const std::string type = row.type;
      CHECK(differ == (type != "FILE" && type != "FOLDER" && type != "PATH"));
    }
  });
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
    if (option->get_items_expected_max() > 1) {
      CHECK(error({"x.plan", name, "1", "2", name + "=3"}).empty());
      CHECK(error({name, "1", "x.plan"}) ==
            name +
                ": 'x.plan' is taken as one of its values, and so there is no PLAN (which comes "
                "before it" +
                help);
      continue;
    }
    CHECK(error({"x.plan", name, "1", "2"}) ==
          name + ": '2' is a second value (one " + type + help);
    CHECK(error({"x.plan", name, "1", name + "=2"}) ==
          name + ": is given twice, as '1' and as '2' (once" + help);
    CHECK(error({"x.plan", name}) == name + ": without its value (" + type + help);
  }
}

}  // namespace
}  // namespace pp
