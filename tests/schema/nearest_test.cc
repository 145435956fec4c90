#include "schema/base/nearest.h"

#include <catch2/catch.hpp>
#include <string>

namespace pp {
namespace {

TEST_CASE("a slip has a nearest name, another word has none") {
  constexpr std::string_view kNames[] = {"gpipe", "1f1b", "zb-v", "zb-h1", "interleaved"};
  CHECK(Nearest("gpip", kNames) == "gpipe");
  CHECK(Nearest("gppie", kNames) == "");  // two of five letters
  CHECK(Nearest("interlevaed", kNames) == "interleaved");
  CHECK(Nearest("1F1B", kNames) == "1f1b");
  CHECK(Nearest("zbv", kNames) == "zb-v");
  CHECK(Nearest("zb-h", kNames) == "zb-v");  // the first of two that are as near
  CHECK(Nearest("", kNames) == "");
  CHECK(Nearest("megatron", kNames) == "");
  CHECK(Nearest(std::string(1 << 20, 'x'), kNames) == "");
  CHECK(Nearest("1f1b", {}) == "");
  CHECK(DidYouMean("gpip", kNames) == "did you mean gpipe? ");
  CHECK(DidYouMean("other", kNames) == "");
}

TEST_CASE("an option's former name is understood, with a note") {
  constexpr Renamed kRenamed[] = {{"--clip", "--grad-norm"}, {"--old", "--new"}};
  std::vector<std::string> words = {"compile",   "--clip", "off", "--clip=exact",
                                    "--clipped", "--olds", "--",  "--old"};
  CHECK(UseNewNames(kRenamed, &words) ==
        std::vector<std::string>{"--clip is now called --grad-norm"});
  CHECK(words == std::vector<std::string>{"compile", "--grad-norm", "off", "--grad-norm=exact",
                                          "--clipped", "--olds", "--", "--old"});
  CHECK(UseNewNames(kRenamed, &words).empty());
}

}  // namespace
}  // namespace pp
