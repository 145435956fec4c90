#include "runtime/comm/routed_transport.h"

#include <algorithm>
#include <utility>

namespace pp {
namespace {

class RoutedTransport : public Transport {
 public:
  RoutedTransport(std::unique_ptr<Transport> near, std::unique_ptr<Transport> far,
                  const std::vector<int>& near_ranks)
      : Transport(near->rank(), near->ranks(), near->bell().words()),
        near_(std::move(near)),
        far_(std::move(far)),
        route_(ranks(), far_.get()) {
    for (int rank : near_ranks) route_[rank] = near_.get();
  }

  Status Reserve(std::span<const Port> sends) override {
    for (const Port& port : sends) PP_RETURN_IF_ERROR(route_[port.peer]->Reserve({&port, 1}));
    return {};
  }
  Status Start(const Port& port, void* data, int64_t bytes) override {
    return route_[port.peer]->Start(port, data, bytes);
  }
  Status Test(const Port& port, bool* over) override { return route_[port.peer]->Test(port, over); }
  bool polls() const override { return far_->polls(); }
  double wake_at() const override { return std::min(near_->wake_at(), far_->wake_at()); }
  bool HasDied(int peer) override { return route_[peer]->HasDied(peer); }
  void Settle(double seconds) override {
    near_->Settle(seconds);
    far_->Settle(seconds);
  }

 private:
  const std::unique_ptr<Transport> near_, far_;
  std::vector<Transport*> route_;  // by peer
};

}  // namespace

std::unique_ptr<Transport> MakeRoutedTransport(std::unique_ptr<Transport> near,
                                               std::unique_ptr<Transport> far,
                                               const std::vector<int>& near_ranks) {
  return std::make_unique<RoutedTransport>(std::move(near), std::move(far), near_ranks);
}

}  // namespace pp
