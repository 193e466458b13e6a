// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "comm/group.h"
#include "zero/row.h"

namespace deepspeed::zero {

/// Brings the sharded rows of a model to where they are used and lets them go again, ahead of time where the order of
/// the last pass tells what comes next (ZeRO-3; Rajbhandari et al. 2021, "ZeRO-Infinity", section 6.2). All elements
/// are counted in whole rows.
///
/// A gather needs every rank, yet ranks may run different units in the same step. So gathers happen in numbered slots:
/// for each slot every rank says which row it wants next, all gather the one that comes first in the model, and who
/// wanted another says so again for the next slot. A wish is spoken one unit ahead, so that nobody waits for it while
/// the ranks agree; a rank that waits for something else passes, so that the others go on.
class Gatherer {
 public:
  struct Settings {
    std::int64_t prefetch = 0;  ///< more is fetched ahead while less than this is here unused; 0 = nothing ahead
    std::int64_t max_live = std::numeric_limits<std::int64_t>::max();  ///< nothing is fetched or kept beyond this
    std::int64_t reuse_distance = 0;  ///< keep a row that is used again before so many elements of others are
    bool log_changes = false;         ///< tell when the order of a pass isn't that of the last one
  };

  /// Collective. `rows`: those that may be released, in the same order on every rank. They must outlive the gatherer.
  Gatherer(comm::Group& data, std::vector<Row*> rows, const Settings& settings);
  ~Gatherer();
  Gatherer(const Gatherer&) = delete;
  Gatherer& operator=(const Gatherer&) = delete;

  /// A forward from the top begins: what comes is compared with what came after the last call.
  void begin_pass();
  /// Returns once these are whole; they stay so until done() was called as often.
  void use(std::span<Row* const> rows);
  void done(std::span<Row* const> rows);
  /// Waits for another collective of the same ranks, of which some may still want rows before they take part in it.
  void wait(comm::Work& work);
  /// Collective: returns when no rank wants anything more, and lets go of all that isn't in use. Before weights change.
  void finish();

  /// Elements that are here or on their way, and the most there ever were.
  std::int64_t live() const;
  std::int64_t peak_live() const { return peak_live_; }
  /// Gathers so far, and those that were under way before the row was asked for.
  std::int64_t gathers() const { return gathers_; }
  std::int64_t ahead() const { return ahead_count_; }

 private:
  struct Announcement {
    double value = 0;
    comm::Work agreed;
  };
  std::size_t pass() const { return rows_.size(); }
  std::size_t end() const { return rows_.size() + 1; }
  void announce(std::size_t wish);
  std::size_t resolve();
  void start(std::size_t index);
  void let_go(std::size_t index);
  void make_room(std::int64_t numel);
  void fetch(std::size_t index);
  void prefetch();
  std::optional<std::int64_t> distance_to_next_use(std::size_t index) const;
  bool stays(std::size_t index) const;
  std::optional<std::size_t> next_wish() const;
  void note_use(std::size_t index);

  std::shared_ptr<comm::Group> channel_;  // null where this rank is alone: then nothing is to be agreed on
  comm::Group* data_;
  std::vector<Row*> rows_;
  std::unordered_map<const Row*, std::size_t> index_;
  Settings settings_;
  std::unique_ptr<Announcement> announced_;
  std::vector<char> fresh_;  // gathered and not used since
  std::vector<std::size_t> last_pass_;
  std::vector<std::size_t> this_pass_;
  bool predicted_ = false;  // this pass has been like the last one so far
  std::int64_t peak_live_ = 0;
  std::int64_t gathers_ = 0;
  std::int64_t ahead_count_ = 0;
};

}  // namespace deepspeed::zero
