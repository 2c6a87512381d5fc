// What the pages import from vendor.js.
export { h, render, Fragment, createContext } from 'preact';
export { useContext, useEffect, useLayoutEffect, useMemo, useRef, useState } from 'preact/hooks';
export { default as htm } from 'htm';
export { default as uPlot } from 'uplot';
