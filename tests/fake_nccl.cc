#include "tests/fake_nccl.h"

#include <fmt/format.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/fake_cuda.h"

namespace pp {

class FakeNcclWorld {
 public:
  using Operation = Nccl::Operation;

  // Operations that progress together.
  struct Group {
    std::vector<Operation> operations;
    std::vector<bool> over;
    bool at_head = false;  // the stream has reached it
  };
  struct Member {
    bool here = false, gone = false;
    std::deque<std::shared_ptr<Group>> groups;  // in the stream
  };
  struct Communicator {
    std::vector<Member> members;
    int here = 0;
    bool made() const { return here == static_cast<int>(members.size()); }
  };

  explicit FakeNcclWorld(int ranks) : ranks_(ranks) {}

  Nccl::Id MakeId() {
    std::lock_guard<std::mutex> lock(mutex_);
    Nccl::Id id{};
    const int64_t number = ++ids_;
    std::memcpy(id.data(), &number, sizeof number);
    return id;
  }

  // Waits until all members have come, or `ended` is set.
  Result<Communicator*> Join(const Nccl::Id& id, int member, int members,
                             const std::atomic<bool>& ended) {
    std::unique_lock<std::mutex> lock(mutex_);
    Communicator& one = communicators_[id];
    if (one.members.empty()) one.members.resize(members);
    if (static_cast<int>(one.members.size()) != members || member < 0 || member >= members)
      return Fail(
          fmt::format("member {} of {}, where others say {}", member, members, one.members.size()));
    if (std::exchange(one.members[member].here, true))
      return Fail(fmt::format("two ranks are member {} of a communicator", member));
    ++one.here;
    ++waiting_;
    if (one.made()) waiting_ -= members;
    if (waiting_ == ranks_)
      std::ignore = Fail("deadlock: all ranks make communicators, none the same");
    changed_.notify_all();
    changed_.wait(lock, [&] { return one.made() || !status_.ok() || ended.load(); });
    if (!status_.ok()) return status_;
    if (!one.made()) {
      one.members[member].here = false;
      --one.here, --waiting_;
      return Status::Failed("NCCL: aborted");
    }
    return &one;
  }
  // Something that Join waits for has changed.
  void Wake() {
    std::lock_guard<std::mutex> lock(mutex_);
    changed_.notify_all();
  }

  Status status() {
    std::lock_guard<std::mutex> lock(mutex_);
    return status_;
  }

  Result<std::shared_ptr<Group>> Add(Communicator* one, int member,
                                     std::span<const Operation> operations) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (one == nullptr || !one->made() || one->members[member].gone)
      return Fail("operations on a communicator that is not made");
    for (const Operation& operation : operations)
      if (operation.member == member || operation.member < 0 ||
          operation.member >= static_cast<int>(one->members.size()) || operation.bytes <= 0)
        return Fail(fmt::format("an operation of member {} with member {} of {}", member,
                                operation.member, one->members.size()));
    auto group = std::make_shared<Group>();
    group->operations.assign(operations.begin(), operations.end());
    group->over.resize(operations.size());
    one->members[member].groups.push_back(group);
    return group;
  }

  // The stream has reached the group: whether it may continue.
  bool Advance(Communicator* one, int member, const std::shared_ptr<Group>& group) {
    std::lock_guard<std::mutex> lock(mutex_);
    Member& me = one->members[member];
    if (me.gone || !status_.ok()) return true;
    group->at_head = true;
    bool over = true;
    for (size_t i = 0; i < group->operations.size(); ++i) {
      if (!group->over[i]) Match(one, member, group.get(), i);
      over = over && group->over[i];
    }
    if (over) {
      me.groups.pop_front();
    } else {
      std::set<int> path;
      if (Circles(*one, member, &path))
        std::ignore = Fail(fmt::format("deadlock: members {} of a communicator wait for each other",
                                       fmt::join(path, ", ")));
    }
    return over;
  }

  void Leave(Communicator* one, int member) {
    std::lock_guard<std::mutex> lock(mutex_);
    one->members[member].gone = true;
  }
  bool Waits(const Communicator& one, int member) {
    std::lock_guard<std::mutex> lock(mutex_);
    return HeadOf(one, member) != nullptr && !one.members[member].gone;
  }

 private:
  Status Fail(const std::string& what) {
    if (status_.ok()) status_ = Status::Failed("NCCL: " + what);
    changed_.notify_all();
    return status_;
  }

  // The group that a member's stream has stopped at; null: none.
  static Group* HeadOf(const Communicator& one, int member) {
    const auto& groups = one.members[member].groups;
    return groups.empty() || !groups.front()->at_head ? nullptr : groups.front().get();
  }

  // The first operation of `group` that is not over and is the counterpart of `operation`.
  static int PartnerIn(const Group& group, int member, const Operation& operation) {
    for (size_t i = 0; i < group.operations.size(); ++i)
      if (!group.over[i] && group.operations[i].member == member &&
          group.operations[i].way != operation.way)
        return static_cast<int>(i);
    return -1;
  }

  void Match(Communicator* one, int member, Group* group, size_t index) {
    const Operation& mine = group->operations[index];
    Group* head = HeadOf(*one, mine.member);
    if (head == nullptr || one->members[mine.member].gone) return;
    const int partner = PartnerIn(*head, member, mine);
    if (partner < 0) return;
    const Operation& theirs = head->operations[partner];
    if (mine.bytes != theirs.bytes) {
      std::ignore = Fail(fmt::format("member {} has {} bytes and member {} has {} of one message",
                                     member, mine.bytes, mine.member, theirs.bytes));
      return;
    }
    const bool sends = mine.way == Way::kSend;
    std::memcpy(sends ? theirs.data : mine.data, sends ? mine.data : theirs.data, mine.bytes);
    group->over[index] = head->over[partner] = true;
  }

  // Whether `member` waits, directly or not, for somebody who waits for it.
  bool Circles(const Communicator& one, int member, std::set<int>* path) const {
    if (path->contains(member)) return true;
    const Group* group = HeadOf(one, member);
    if (group == nullptr) return false;
    path->insert(member);
    for (size_t i = 0; i < group->operations.size(); ++i) {
      if (group->over[i]) continue;
      const Operation& operation = group->operations[i];
      const Group* head = HeadOf(one, operation.member);
      if (head == nullptr || PartnerIn(*head, member, operation) >= 0) continue;
      if (Circles(one, operation.member, path)) return true;
    }
    path->erase(member);
    return false;
  }

  const int ranks_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int64_t ids_ = 0;
  std::map<Nccl::Id, Communicator> communicators_;
  int waiting_ = 0;  // ranks, for communicators to be made
  Status status_;
};

namespace {

class FakeNccl : public Nccl {
 public:
  explicit FakeNccl(std::shared_ptr<FakeNcclWorld> world) : world_(std::move(world)) {}

  Result<Id> MakeId() override { return world_->MakeId(); }

  Result<Communicator> Create(const Id& id, int member, int members) override {
    const auto joined = world_->Join(id, member, members, ended_);
    PP_RETURN_IF_ERROR(joined.status());
    std::lock_guard<std::mutex> lock(mutex_);
    member_[*joined] = member;
    return static_cast<Communicator>(*joined);
  }

  Status Enqueue(Communicator communicator, std::span<const Operation> operations,
                 Stream stream) override {
    std::lock_guard<std::mutex> lock(mutex_);
    if (ended_.load()) return Status::Failed("NCCL: aborted");
    auto* one = static_cast<FakeNcclWorld::Communicator*>(communicator);
    const int member = member_[one];
    // A real one makes two streams for each communicator; here it has none before.
    if (streams_.insert(one).second) FakeStreams(stream, 2);
    const auto group = world_->Add(one, member, operations);
    PP_RETURN_IF_ERROR(group.status());
    FakeWait(stream,
             [=, world = world_, group = *group] { return world->Advance(one, member, group); });
    return {};
  }

  Status Check(Communicator) override { return world_->status(); }

  // A real one waits for the device if a communicator is left that holds up a stream.
  void Abort(std::span<const Communicator> communicators) override {
    ended_.store(true);
    world_->Wake();
    std::lock_guard<std::mutex> lock(mutex_);
    for (Communicator communicator : communicators) {
      auto* one = static_cast<FakeNcclWorld::Communicator*>(communicator);
      if (one != nullptr) world_->Leave(one, member_[one]);
    }
    for (const auto& [one, member] : member_) PP_CHECK(!world_->Waits(*one, member));
  }

 private:
  const std::shared_ptr<FakeNcclWorld> world_;
  std::mutex mutex_;  // of the following
  std::map<const FakeNcclWorld::Communicator*, int> member_;
  std::set<const FakeNcclWorld::Communicator*> streams_;  // that have theirs
  std::atomic<bool> ended_{false};
};

}  // namespace

std::shared_ptr<FakeNcclWorld> MakeFakeNcclWorld(int ranks) {
  return std::make_shared<FakeNcclWorld>(ranks);
}

std::unique_ptr<Nccl> MakeFakeNccl(std::shared_ptr<FakeNcclWorld> world) {
  return std::make_unique<FakeNccl>(std::move(world));
}

}  // namespace pp
