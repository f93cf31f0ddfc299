// Generated text: what one head looked at when the chosen token was written.

const data = JSON.parse(document.getElementById("data").textContent);
const slider = document.getElementById("step");
const tokens = document.getElementById("tokens");
const stepOf = new Map(data.steps.map((step, number) => [step.place, number]));

function token(word, place) {
  const button = document.createElement("button");
  button.type = "button";
  button.dataset.token = place;
  button.disabled = !stepOf.has(place);
  button.append(Object.assign(document.createElement("span"), { textContent: word }), document.createElement("small"));
  return button;
}

function inWords(weights) {
  const best = Array.from(weights.keys()).sort((a, b) => weights[b] - weights[a]).slice(0, 3);
  const parts = best.filter((place) => weights[place] >= 10);
  return parts.map((place) => `${(weights[place] / 1000).toFixed(3)} on ${data.words[place]} (${place})`).join(", ");
}

function drawStep() {
  const { place, weights } = data.steps[Number(slider.value)];
  const told = `${data.words[place]} (${place}): ${inWords(weights) || "no token gets 0.01"}`;
  document.getElementById("step-shown").textContent = told;
  slider.setAttribute("aria-valuetext", told);
  for (const button of tokens.children) {
    const own = Number(button.dataset.token);
    const share = own < place ? weights[own] / 1000 : 0;
    button.style.setProperty("--share", share);
    button.setAttribute("aria-pressed", String(own === place));
    button.classList.toggle("later", own > place);
    button.querySelector("small").textContent = share < 0.0005 ? "\u00a0" : share.toFixed(3);
  }
}

tokens.replaceChildren(...data.words.map(token));
tokens.addEventListener("click", function (event) {
  const button = event.target.closest("[data-token]");
  if (!button) return;
  slider.value = stepOf.get(Number(button.dataset.token));
  drawStep();
});
slider.max = data.steps.length - 1;
slider.addEventListener("input", drawStep);
drawStep();
