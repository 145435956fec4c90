#include "runtime/comm/slow_transport.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <string_view>

#include "runtime/comm/clock.h"
#include "schema/base/split.h"
#include "schema/base/units.h"

namespace pp {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();

// A number with a unit of that dimension.
bool Reads(std::string_view text, Dimension dimension, double* value) {
  const auto quantity = ReadQuantity(text);
  if (!quantity || quantity->dimension != dimension) return false;
  *value = quantity->value;
  return true;
}

class SlowTransport : public Transport {
 public:
  SlowTransport(Transport* fast, const Network& network)
      : Transport(fast->rank(), fast->ranks(), fast->bell().words()),
        fast_(fast),
        network_(network),
        transfers_(port_count()) {}

  Status Reserve(std::span<const Port> sends) override { return fast_->Reserve(sends); }

  Status Start(const Port& port, void* data, int64_t bytes) override {
    if (port.channel != Channel::kControl) transfers_[IndexOf(port)] = {bytes, kNever};
    return fast_->Start(port, data, bytes);
  }

  Status Test(const Port& port, bool* over) override {
    if (port.channel == Channel::kControl) return fast_->Test(port, over);
    Held& held = transfers_[IndexOf(port)];
    if (held.until == kNever) {
      PP_RETURN_IF_ERROR(fast_->Test(port, over));
      if (!*over) return {};
      held.until = SteadySeconds() + static_cast<double>(held.bytes) * network_.seconds_per_byte;
      if (port.way == Way::kRecv) held.until += network_.latency;
    }
    *over = SteadySeconds() >= held.until;
    if (*over) held.until = kNever;
    return {};
  }

  bool CopyBy(Copier* copier) override { return fast_->CopyBy(copier); }
  bool polls() const override { return fast_->polls(); }

  double wake_at() const override {
    const auto next = std::min_element(transfers_.begin(), transfers_.end(),
                                       [](auto& a, auto& b) { return a.until < b.until; });
    return std::min(next->until, fast_->wake_at());
  }

  void Settle(double seconds) override { fast_->Settle(seconds); }

 private:
  // A transfer that the fast transport has finished, held until it may be over.
  struct Held {
    int64_t bytes = 0;
    double until = kNever;
  };

  Transport* const fast_;
  const Network network_;
  std::vector<Held> transfers_;
};

}  // namespace

Result<Network> ParseNetwork(const std::string& text) {
  Network network;
  for (const std::string_view item : Split(text, ',')) {
    const std::string_view key = item.substr(0, item.find('='));
    const std::string_view value = item.substr(std::min(item.size(), key.size() + 1));
    double bandwidth = 0;
    const bool known =
        (key == "latency" && Reads(value, Dimension::kTime, &network.latency)) ||
        (key == "bandwidth" && Reads(value, Dimension::kBandwidth, &bandwidth) && bandwidth >= 1);
    if (!known)
      return Status::Invalid(fmt::format("'{}' (latency=50us,bandwidth=1GB/s)", Shown(item)));
    if (bandwidth > 0) network.seconds_per_byte = 1 / bandwidth;
  }
  return network;
}

std::unique_ptr<Transport> MakeSlowTransport(Transport* fast, const Network& network) {
  return std::make_unique<SlowTransport>(fast, network);
}

}  // namespace pp
