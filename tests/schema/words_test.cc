// Command lines whose words are wrong: each is one clear line, and a right one is none.
#include "schema/cli/words.h"

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "schema/base/split.h"

namespace pp {
namespace {

// One file, options with and without values, one that may be repeated.
class Program {
 public:
  Program() : app_("a program") {
    app_.add_option("PLAN", plan_, "")->type_name("PLAN");
    app_.add_option("-o,--output", output_, "")->type_name("FILE");
    app_.add_option("--costs", costs_, "")->type_name("LIST");
    app_.add_option("--many", many_, "")->type_name("FILE");
    app_.add_flag("-q,--quiet", quiet_, "");
    app_.add_flag("-v", verbose_, "");
  }
  std::string ErrorOf(const std::string& line) const {
    std::vector<std::string> words;
    for (const std::string_view word : Split(line, ' '))
      if (!word.empty()) words.emplace_back(word);
    return CheckWords(app_, "program", words).message();
  }

 private:
  CLI::App app_;
  std::string plan_, output_, costs_;
  std::vector<std::string> many_;
  bool quiet_ = false, verbose_ = false;
};

TEST_CASE("right words") {
  for (const char* line : {"", "a", "-", "a -o b", "-ob a", "--output=b a", "--output - a",
                           "-q -q a", "-qv a", "-qo b a", "--costs -1 a", "--costs=-o a", "-- -a",
                           "a --many x --many y", "--quiet=false", "--help", "-h", "--many x y"}) {
    INFO(line);
    CHECK(Program().ErrorOf(line) == "");
  }
}

TEST_CASE("wrong words") {
  const std::string help = "; program --help)";
  for (const auto& [line, error] : std::vector<std::pair<std::string, std::string>>{
           {"a b", "'b': is a second PLAN (program takes one" + help},
           {"a -- b", "'b': is a second PLAN (program takes one" + help},
           {"a -q b", "'b': is a second PLAN (program takes one" + help},
           {"a --costs f=1 b=2", "--costs: 'b=2' is a second value (one LIST" + help},
           {"a -o b c", "--output: 'c' is a second value (one FILE" + help},
           {"--costs 1 --costs 2", "--costs: is given twice, as '1' and as '2' (once" + help},
           {"-o x --output=y", "--output: is given twice, as 'x' and as 'y' (once" + help},
           {"-ox -oy", "-o: is given twice, as 'x' and as 'y' (once" + help},
           {"a --costs", "--costs: without its value (LIST" + help},
           {"--costs --quiet", "--costs: without its value (LIST" + help},
           {"-o -q", "-o: without its value (FILE" + help},
           {"--costs= a", "--costs: without its value (LIST" + help},
           {"--quiet=3", "--quiet: '3' (without a value" + help},
           {"--cost 1", "unknown option '--cost' (did you mean --costs? program --help)"},
           {"-x", "unknown option '-x' (program --help)"},
           {"-qx", "unknown option '-x' (program --help)"},
       }) {
    INFO(line);
    CHECK(Program().ErrorOf(line) == error);
  }
  CLI::App alone("takes no file");
  CHECK(CheckWords(alone, "p list", {"a"}).message() ==
        "'a': p list takes options alone (p list --help)");
}

}  // namespace
}  // namespace pp
