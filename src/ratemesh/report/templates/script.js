// Figures open large: click or Enter, arrows to step, Escape to close. Without scripts the page is complete all the same.
(() => {
  "use strict";
  const dialog = document.getElementById("large");
  const picture = dialog.querySelector("img");
  const save = dialog.querySelector("[data-do=save]");
  const size = dialog.querySelector("[data-do=size]");
  const openers = [...document.querySelectorAll("button.zoom")];
  let at = 0;

  function show(index) {
    at = (index + openers.length) % openers.length;
    const small = openers[at].querySelector("img");
    picture.src = small.src;
    picture.alt = small.alt;
    save.href = small.src;
    save.download = small.dataset.file;
  }

  function fit(whole) {
    dialog.classList.toggle("full", !whole);
    size.setAttribute("aria-pressed", String(!whole));
  }

  const actions = {
    previous: () => show(at - 1),
    next: () => show(at + 1),
    size: () => fit(dialog.classList.contains("full")),
    close: () => dialog.close(),
  };

  openers.forEach((opener, index) => opener.addEventListener("click", () => {
    show(index);
    fit(true);
    dialog.showModal();
  }));
  dialog.addEventListener("click", (event) => {
    const wanted = event.target.dataset.do;
    if (wanted in actions) actions[wanted]();
    else if (event.target === picture) actions.size();
    else if (event.target === dialog || event.target.classList.contains("sheet")) dialog.close();
  });
  dialog.addEventListener("keydown", (event) => {
    if (dialog.classList.contains("full")) return; // arrows scroll there
    if (event.key === "ArrowLeft") actions.previous();
    if (event.key === "ArrowRight") actions.next();
  });
  dialog.addEventListener("close", () => openers[at].focus());
})();
