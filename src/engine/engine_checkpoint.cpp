// SPDX-License-Identifier: Apache-2.0
// What a checkpoint of an engine holds: logical tensors and one state record, whatever the placement.
//   model/NAME            weights in the working type (and buffers)
//   optimizer/fp32/NAME   masters, where they differ from the weights
//   optimizer/STATE/NAME  one for each state of the update rule
#include <ATen/ops/empty.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <set>

#include "base/error.h"
#include "base/version.h"
#include "checkpoint/checkpoint.h"
#include "engine/engine.h"
#include "kernels/host.h"
#include "nn/tensor_buffer.h"

namespace deepspeed::engine {
namespace {

constexpr int state_version = 1;

std::vector<std::int64_t> shape_of(const at::Tensor& tensor) {
  return tensor.sizes().vec();
}

/// Calls f(parameter, offset in it, offset in the row, elements) for each piece of a range of a row.
template <class F>
void for_each_piece(const zero::Row& row, zero::Range range, F&& f) {
  for (const layout::Segment& s : row.partition().segments(range.begin, range.end)) {
    f(row.parameters()[static_cast<std::size_t>(s.parameter)], s.parameter_offset, s.flat_offset, s.numel);
  }
}

}  // namespace

void Engine::save_checkpoint(const std::filesystem::path& folder, std::string tag, const nlohmann::json& client_state,
                             bool save_latest, int keep_last) {
  if (partial_) {
    throw base::CheckpointError(fmt::format(
        "save_checkpoint between accumulation boundaries (after micro step {}): the partial gradient sum isn't part of "
        "a checkpoint; call it after the step that ends the accumulation",
        micro_steps_));
  }
  if (tag.empty()) tag = fmt::format("global_step{}", global_steps_);
  const int rank = group_->rank();

  std::vector<checkpoint::Slice> slices;
  std::vector<at::Tensor> kept;  // what slices point to and nobody else holds
  const auto add = [&slices](std::string name, const at::Tensor& whole, std::int64_t offset, base::ConstBuffer data) {
    slices.push_back({std::move(name), shape_of(whole), offset, data});
  };
  // Every rank writes its own slice, also of what all ranks hold.
  const auto add_weights = [&](const zero::Row& row) {
    for_each_piece(row, row.share(),
                   [&](const zero::NamedParameter& p, std::int64_t offset, std::int64_t at, std::int64_t n) {
                     add("model/" + p.name, p.tensor, offset, row.weights().part(at - row.slice().begin, n));
                   });
  };
  for (const auto& trained : optimizer_->rows()) {
    const zero::Row& row = trained->row();
    add_weights(row);
    const base::Buffer master = trained->master();
    for_each_piece(row, row.share(),
                   [&](const zero::NamedParameter& p, std::int64_t offset, std::int64_t at, std::int64_t n) {
                     const std::int64_t local = at - trained->owned().begin;
                     if (trained->has_own_master()) {
                       add("optimizer/fp32/" + p.name, p.tensor, offset, master.part(local, n));
                     }
                     for (std::size_t s = 0; s < trained->states.size(); ++s) {
                       add("optimizer/" + optimizer_->rule().states()[s].name + "/" + p.name, p.tensor, offset,
                           nn::view(trained->states[s], local, n));
                     }
                   });
  }
  for (const auto& row : optimizer_->frozen_rows()) add_weights(*row);
  if (rank == 0) {
    for (const auto& row : optimizer_->rows()) {
      for (const zero::NamedParameter& p : row->parameters()) {
        if (p.tensor.numel() != 0) continue;  // no piece of any row, yet a tensor of the model
        add("model/" + p.name, p.tensor, 0, {nullptr, 0, precision_.working});
        for (const optim::StateSpec& spec : optimizer_->rule().states()) {
          add("optimizer/" + spec.name + "/" + p.name, p.tensor, 0, {nullptr, 0, spec.type});
        }
      }
    }
    for (const auto& row : optimizer_->frozen_rows()) {
      for (const zero::NamedParameter& p : row->parameters()) {
        if (p.tensor.numel() == 0) add("model/" + p.name, p.tensor, 0, {nullptr, 0, precision_.working});
      }
    }
    for (const auto& item : model_->named_buffers()) {
      kept.push_back(item.value().contiguous());
      add("model/" + item.key(), item.value(), 0, nn::view(kept.back()));
    }
  }

  nlohmann::json state = {
      {"version", state_version},
      {"deepspeed_mpi_version", base::version()},
      {"global_steps", global_steps_},
      {"global_samples", global_samples_},
      {"micro_steps", micro_steps_},
      {"skipped_steps", skipped_steps_},
      {"dp_world_size", group_->size()},
      {"train_batch_size", train_batch_size_},
      {"dtype", std::string(base::name_of(precision_.working))},
      {"optimizer", {{"type", optimizer_->rule().name()}, {"steps", optimizer_->steps()}}},
      {"lr_scheduler", schedule_ ? schedule_->state() : nlohmann::json()},
      {"loss_scaler", precision_.scaled ? scaler_.state() : nlohmann::json()},
      {"client_state", client_state},
  };
  for (const optim::Hyper& h : optimizer_->hypers()) {
    state["optimizer"]["param_groups"].push_back(
        {{"lr", h.lr}, {"betas", {h.beta1, h.beta2}}, {"eps", h.eps}, {"weight_decay", h.weight_decay}});
  }
  checkpoint::save(*group_, {folder, tag, save_latest, keep_last}, slices, state);
}

nlohmann::json Engine::load_checkpoint(const std::filesystem::path& folder, const std::string& tag,
                                       const LoadOptions& options) {
  optimizer_->gatherer().finish();  // some rank may want weights still before it comes to read
  return load_checkpoint(checkpoint::Reader::open(*group_, folder, tag.empty() ? checkpoint::latest_tag(folder) : tag),
                         options);
}

nlohmann::json Engine::load_checkpoint(const checkpoint::Reader& reader, const LoadOptions& options) {
  const nlohmann::json& state = reader.state();
  const std::string& where = reader.tag();

  // All is checked before anything is changed.
  const auto require = [&](const std::string& tensor, const at::Tensor& like) {
    const checkpoint::TensorInfo* info = reader.find(tensor);
    if (info == nullptr)
      throw base::CheckpointError(
          fmt::format("checkpoint {}: holds no tensor '{}', which the model has", where, tensor));
    if (info->shape != shape_of(like)) {
      throw base::CheckpointError(fmt::format("checkpoint {}: tensor '{}' has shape [{}], the model wants [{}]", where,
                                              tensor, fmt::join(info->shape, ", "), fmt::join(like.sizes(), ", ")));
    }
    return info;
  };
  const bool optimizer = options.load_optimizer_states && !options.load_module_only;
  std::set<std::string> known;
  for (const auto& row : optimizer_->rows()) {
    for (const zero::NamedParameter& p : row->parameters()) {
      known.insert(require("model/" + p.name, p.tensor)->name);
      if (!optimizer) continue;
      for (const optim::StateSpec& spec : optimizer_->rule().states())
        require("optimizer/" + spec.name + "/" + p.name, p.tensor);
    }
  }
  for (const auto& row : optimizer_->frozen_rows()) {
    for (const zero::NamedParameter& p : row->parameters()) known.insert(require("model/" + p.name, p.tensor)->name);
  }
  for (const auto& item : model_->named_buffers()) known.insert(require("model/" + item.key(), item.value())->name);
  for (const checkpoint::TensorInfo& info : reader.tensors()) {
    if (info.name.starts_with("model/") && known.count(info.name) == 0) {
      throw base::CheckpointError(
          fmt::format("checkpoint {}: holds tensor '{}', which the model lacks", where, info.name));
    }
  }
  if (optimizer && state.at("optimizer").at("type") != optimizer_->rule().name()) {
    throw base::CheckpointError(fmt::format("checkpoint {}: written with optimizer {}, the config says {}", where,
                                            state.at("optimizer").at("type").get<std::string>(),
                                            optimizer_->rule().name()));
  }

  const bool from_fp32 = optimizer && config_.get<bool>("zero_optimization.load_from_fp32_weights");

  // What was gathered before would keep the old weights.
  optimizer_->gatherer().finish();
  // Weights of any type are read as they are stored and converted once.
  const auto read = [&](const std::string& tensor, std::int64_t offset, const base::Buffer& out) {
    const checkpoint::TensorInfo* info = reader.find(tensor);
    if (info->type == out.type) return reader.read(tensor, offset, out);
    const at::Tensor stored = at::empty({out.numel}, nn::scalar_type(info->type));
    reader.read(tensor, offset, nn::view(stored));
    kernels::cast(out, nn::view(stored));
  };
  const auto read_weights = [&](const zero::Row& row) {
    for_each_piece(row, row.share(),
                   [&](const zero::NamedParameter& p, std::int64_t offset, std::int64_t at, std::int64_t n) {
                     read("model/" + p.name, offset, row.weights().part(at - row.slice().begin, n));
                   });
    if (!row.whole()) return;
    for_each_piece(row, {0, row.numel()},
                   [&](const zero::NamedParameter& p, std::int64_t offset, std::int64_t at, std::int64_t n) {
                     read("model/" + p.name, offset, row.whole_weights().part(at, n));
                   });
  };
  for (const auto& trained : optimizer_->rows()) {
    const zero::Row& row = trained->row();
    read_weights(row);
    const base::Buffer master = trained->master();
    for_each_piece(row, trained->owned(),
                   [&](const zero::NamedParameter& p, std::int64_t offset, std::int64_t at, std::int64_t n) {
                     const std::int64_t local = at - trained->owned().begin;
                     if (trained->has_own_master()) {
                       const std::string fp32 = "optimizer/fp32/" + p.name;
                       read(from_fp32 && reader.find(fp32) != nullptr ? fp32 : "model/" + p.name, offset,
                            master.part(local, n));
                     }
                     if (!optimizer) return;
                     for (std::size_t s = 0; s < trained->states.size(); ++s) {
                       read("optimizer/" + optimizer_->rule().states()[s].name + "/" + p.name, offset,
                            nn::view(trained->states[s], local, n));
                     }
                   });
  }
  for (const auto& row : optimizer_->frozen_rows()) read_weights(*row);
  for (const auto& item : model_->named_buffers()) {
    const at::Tensor whole = item.value().detach().contiguous();
    read("model/" + item.key(), 0, nn::view(whole));
    if (whole.data_ptr() != item.value().data_ptr()) item.value().detach().copy_(whole);
  }
  zero_grad();
  if (options.load_module_only) return state.at("client_state");

  global_steps_ = state.at("global_steps");
  global_samples_ = state.at("global_samples");
  // Micro steps count in the current accumulation; only whole steps are ever saved.
  micro_steps_ = global_steps_ * gas_;
  skipped_steps_ = state.at("skipped_steps");
  if (optimizer) {
    optimizer_->set_steps(state.at("optimizer").at("steps"));
    if (precision_.scaled && !state.at("loss_scaler").is_null()) scaler_.load(state.at("loss_scaler"));
  }
  if (options.load_lr_scheduler_states) {
    if (schedule_ && !state.at("lr_scheduler").is_null()) {
      schedule_->load(state.at("lr_scheduler"));
      const auto& groups = state.at("optimizer").at("param_groups");
      for (std::size_t i = 0; i < optimizer_->hypers().size() && i < groups.size(); ++i) {
        optim::Hyper& hyper = optimizer_->hypers()[i];
        hyper.lr = groups[i].at("lr");
        hyper.beta1 = groups[i].at("betas")[0];
        hyper.beta2 = groups[i].at("betas")[1];
      }
    }
  }
  return state.at("client_state");
}

}  // namespace deepspeed::engine
