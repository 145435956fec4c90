#include "compiler/lines.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "schema/base/number.h"
#include "schema/routines.h"

namespace pp {
namespace {

constexpr std::string_view kDevice = "device ", kNumber = " (instruction ";

// The number of a device at the beginning of a text, or -1.
int DeviceIn(std::string_view text, const Program& lists) {
  int device = -1;
  const size_t end = std::min(text.find_first_not_of("0123456789"), text.size());
  return ReadNumber(text.substr(0, end), &device) && device < lists.devices ? device : -1;
}

// The device that stands before an instruction: "device 3, 'FW s0 m0'", or without the comma. -1:
// none.
int DeviceBefore(std::string_view text, const Program& lists) {
  const size_t word = text.rfind(kDevice);
  if (word == text.npos) return -1;
  const std::string_view rest = text.substr(word + kDevice.size());
  const bool alone = rest.find_first_not_of("0123456789, ") == rest.npos;
  return alone ? DeviceIn(rest, lists) : -1;
}

// Where the author finds an instruction: of one device, or of the only one that has it. Empty:
// nowhere.
std::string PlaceOf(std::string_view text, int device, const Program& lists, const Naming& name) {
  std::string place;
  for (int d = std::max(device, 0); d < (device < 0 ? lists.devices : device + 1); ++d) {
    size_t index = 0;
    const auto is = [&](const Instruction& i) { return ++index, ToText(i) == text; };
    const DeviceList& list = lists.lists[d];
    bool found = false;
    ForEachList(list, [&](const std::vector<Instruction>& one) {
      found = found || std::any_of(one.begin(), one.end(), is);
    });
    if (!found) continue;
    if (!place.empty()) return "";
    place = name(d, index - 1);
  }
  return place;
}

}  // namespace

Status WithLines(const Status& status, const Program& lists, const Naming& name) {
  const std::string_view text = status.message();
  const bool numbered = text.find(kNumber) != text.npos;
  std::string message;
  size_t from = 0;
  bool named = false;
  for (size_t open = text.find('\''); open != text.npos; open = text.find('\'', open + 1)) {
    const size_t close = text.find('\'', open + 1);
    if (close == text.npos) break;
    const bool has_number = text.substr(close + 1).starts_with(kNumber);
    if (has_number != numbered) continue;
    const std::string place = PlaceOf(text.substr(open + 1, close - open - 1),
                                      DeviceBefore(text.substr(0, open), lists), lists, name);
    if (place.empty() || text.find(place) != text.npos) continue;  // or named already
    message += fmt::format("{} ({})", text.substr(from, close + 1 - from), place);
    from = has_number ? text.find(')', close) + 1 : close + 1;
    named = true;
  }
  message += text.substr(from);
  // "FILE: device 3: what is wrong with its list".
  const size_t word = message.find(": device ");
  if (!named && word != message.npos)
    if (const int device =
            DeviceIn(std::string_view(message).substr(word + 2 + kDevice.size()), lists);
        device >= 0)
      message.insert(word + 2, name(device, kItself) + ", ");
  return status.code() == Code::kInvalid ? Status::Invalid(message) : Status::Failed(message);
}

}  // namespace pp
